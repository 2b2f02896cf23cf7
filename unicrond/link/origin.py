"""Whether a credential was sealed on the node that it speaks for. Names are looked up in threads:
until an answer is there, whoever asks is told to come again."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from unicrond.link.handshake import Verdict

KNOWN_SECONDS = 60.0
THREADS = 2
Addresses = frozenset[str]


def addresses_of(name: str) -> Addresses:
    """Empty where the name is not known."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return frozenset()
    return frozenset(str(entry[4][0]) for entry in found)


class Origins:
    def __init__(
        self,
        look_up: Callable[[str], Addresses] = addresses_of,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look_up = look_up
        self._clock = clock
        self._threads = ThreadPoolExecutor(THREADS, "origin")
        self._known: dict[str, tuple[float, Future[Addresses]]] = {}  # as many as nodes at most

    def judge(self, origin: str, node: str, address: str) -> Verdict:
        """`address` of the node is Slurm's NodeAddr: an address, or a name."""
        if origin and origin == address:
            return Verdict("ok")
        found = [self._addresses(name) for name in dict.fromkeys((node, address))]
        if any(origin in known for known in found if known is not None):
            return Verdict("ok")
        if None in found:
            return Verdict("retry", f"the address of {node} is being looked up")
        return Verdict(
            "refused",
            f"the credential was sealed on {origin or 'an unknown host'}, not on {node} "
            f"({address}): munged there needs --origin with an address of the node",
        )

    def _addresses(self, name: str) -> Addresses | None:
        asked_at, answer = self._known.get(name, (-KNOWN_SECONDS, None))
        if answer is None or self._clock() >= asked_at + KNOWN_SECONDS:
            answer = self._threads.submit(self._look_up, name)
            self._known[name] = self._clock(), answer
        return answer.result() if answer.done() else None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
