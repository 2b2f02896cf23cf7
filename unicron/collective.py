"""How ranks come together and, above all, apart: the port `Collective`, and what it stands on.

    form      the process group of one generation
    revoke    from any thread: whoever waits in a collective of it gets an error, at once
    leave     destroys what is left of it, within a limit

Implementations: unicron/gloo.py, unicron/nccl.py. This module needs no torch.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from unicron.errors import Revoked, Stuck

ARRIVE_SECONDS = 120.0  # for all members, of which new ones load their libraries first
CONNECT_SECONDS = 10.0  # once all are there
LEAVE_SECONDS = 10.0
_LOOK_SECONDS = 0.005
_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")


@dataclass(frozen=True)
class Place:
    """Of this process in one generation."""

    generation: int
    rank: int
    world_size: int
    local_rank: int
    master_address: str
    master_port: int
    hosts_store: bool = False  # of this generation


def place_in(environment: Mapping[str, str]) -> Place:
    """As torchrun and Unicron's agent tell it; alone where nobody tells. Raises ValueError."""
    told = {name: environment.get(name, "") for name in _NUMBERS}
    if not told["RANK"]:
        return Place(0, 0, 1, 0, "127.0.0.1", 0, hosts_store=True)
    wrong = [name for name, text in told.items() if not text.isdecimal()]
    if wrong:
        raise ValueError(f"{wrong[0]} is {told[wrong[0]]!r}: start with unicron-run or torchrun")
    rank, world_size, local_rank, port = (int(told[name]) for name in _NUMBERS)
    address = environment.get("MASTER_ADDR", "127.0.0.1")
    restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    generation = int(environment.get("UNICRON_GENERATION", restarts))
    hosts = rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return Place(generation, rank, world_size, local_rank, address, port, hosts)


class Collective(Protocol):
    regroups: bool  # whether another group may be formed after one that failed

    def form(self, place: Place, timeout_seconds: float) -> None:
        """Raises Revoked when the generation ends meanwhile; RuntimeError when it fails."""

    def revoke(self, generation: int) -> None:
        """Generations up to this one are over. Thread-safe, returns within milliseconds."""

    def leave(self) -> None:
        """May be called without a group. Raises Stuck."""


class Sockets:
    """Which TCP connections were opened within `noted()`; `cut` ends them for both sides.

    Those of other threads that are opened in just these moments are taken for ours.
    """

    def __init__(self) -> None:
        self._ours: set[tuple[int, str]] = set()
        self._before: set[tuple[int, str]] | None = None  # while being noted
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        with self._lock:
            self._before = _open_sockets()
        try:
            yield
        finally:
            with self._lock:
                self._ours |= _open_sockets() - self._before
                self._before = None

    def cut(self) -> int:
        """How many; those that were closed meanwhile are passed over."""
        with self._lock:
            now = _open_sockets()
            ours = self._ours & now
            if self._before is not None:
                ours |= now - self._before
            return sum(_shut_down(descriptor) for descriptor, _ in ours)

    def forget(self) -> None:
        with self._lock:
            self._ours.clear()


def _open_sockets() -> set[tuple[int, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - as texts, and fast
        try:
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 - no path of a file
        except OSError:
            continue  # closed since
        if target.startswith("socket:"):
            found.add((int(name), target))
    return found


def _shut_down(descriptor: int) -> bool:
    """A connection over TCP; listeners stay, as new members may still come to them."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as ours:
            listens = ours.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if ours.family not in (socket.AF_INET, socket.AF_INET6) or listens:
                return False
            ours.shutdown(socket.SHUT_RD)
    except OSError:
        return False  # closed since, or not connected
    return True


def await_listener(place: Place, over: Callable[[], bool]) -> None:
    """Until the store of the generation listens; raises Revoked, or TimeoutError.

    Connecting to a store that is not there cannot be interrupted inside torch.
    """
    deadline = time.monotonic() + ARRIVE_SECONDS
    address = (place.master_address, place.master_port)
    while time.monotonic() < deadline:
        if over():
            raise Revoked(f"generation {place.generation} is over")
        try:
            socket.create_connection(address, timeout=1.0).close()
        except OSError:
            time.sleep(_LOOK_SECONDS)
            continue
        return
    raise TimeoutError(f"no store at {address[0]}:{address[1]} within {ARRIVE_SECONDS:g} s")


def within(limit_seconds: float, work: Callable[[], None], what: str) -> None:
    """Runs it in a thread of its own; raises Stuck when it takes longer, or what it raised."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            work()
        except (RuntimeError, ValueError, AssertionError) as error:
            raised.append(error)

    thread = threading.Thread(target=run, name=f"unicron-{what}", daemon=True)
    thread.start()
    thread.join(limit_seconds)
    if thread.is_alive():
        raise Stuck(f"{what} took longer than {limit_seconds:g} s")
    if raised:
        raise raised[0]
