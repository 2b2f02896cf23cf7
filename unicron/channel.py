"""The rank's end of its agent's socket (docs/protocol.md): hello and orders, JSON lines.

One thread reads; orders are handed on from it at once, so that a main thread that hangs in a
collective can be set free. An agent that goes away ends the channel, and nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unicron.errors import AgentGone
from unicron.report import MEMBER, SOCKET

SPEAKS = (1, 1)
VERBS = ("stay", "regroup", "stop")
LINE_BYTES = 1 << 20
MOST_VARIABLES = 1000
ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class Order:
    """`generation`: the one that is over for `stay` and `stop`, the new one for `regroup`."""

    verb: str
    generation: int
    environment: Mapping[str, str] = field(default_factory=dict)


class Channel:
    """`ordered` is called by the reading thread. Other methods are the main thread's."""

    def __init__(
        self, path: str, member: str, regroups: bool, ordered: Callable[[Order], None]
    ) -> None:
        self._hello = {"type": "hello", "member": member, "regroups": regroups}
        self._ordered = ordered
        self._order: Order | None = None  # the newest
        self._welcomes: list[int] = []  # generations, oldest first
        self._gone = ""  # why, once it is
        self._news = threading.Condition()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(ANSWER_SECONDS)
            self._socket.connect(path)
            self._socket.settimeout(None)
        except OSError as error:
            self._socket.close()
            raise AgentGone(f"{path}: {error}") from error
        self._lines = self._socket.makefile("rb")
        self._reader = threading.Thread(target=self._read, name="unicron-agent", daemon=True)
        self._reader.start()

    def greet(self) -> int:
        """Joins the newest generation, and says which it is; raises AgentGone."""
        with self._news:
            self._welcomes.clear()
        self._say({**self._hello, "speaks": SPEAKS})
        self._wait(lambda: bool(self._welcomes), ANSWER_SECONDS)
        if not self._welcomes:
            raise AgentGone(self._gone or f"no welcome within {ANSWER_SECONDS:g} s")
        return self._welcomes[-1]

    def order_after(self, order: Order | None, limit_seconds: float) -> Order | None:
        """The newest order if it is another one than `order`; None when none comes in time."""
        self._wait(lambda: self._order is not order, limit_seconds)
        return self._order if self._order is not order else None

    @property
    def order(self) -> Order | None:
        return self._order

    @property
    def gone(self) -> str:
        return self._gone

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the agent closed it before
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(ANSWER_SECONDS)
        self._lines.close()
        self._socket.close()

    def _wait(self, happened: Callable[[], bool], limit_seconds: float) -> None:
        with self._news:
            self._news.wait_for(lambda: happened() or self._gone, limit_seconds)

    def _say(self, body: Mapping[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps({"v": SPEAKS[1], **body}).encode() + b"\n")
        except OSError as error:
            raise AgentGone(self._gone or str(error)) from error

    def _read(self) -> None:
        why = "the agent closed the connection"
        try:
            while line := self._lines.readline(LINE_BYTES):
                self._take(_parse(line))
        except (OSError, ValueError) as error:
            why = str(error)
        with self._news:
            self._gone = why
            self._news.notify_all()

    def _take(self, body: dict[str, Any]) -> None:
        """What is not known is passed over."""
        if body.get("type") == "error":
            raise ValueError(str(body.get("error")))
        order = parse_order(body) if body.get("type") == "order" else None
        if order is not None:
            self._ordered(order)
        with self._news:
            if body.get("type") == "welcome":
                self._welcomes.append(_generation(body))
            self._order = order or self._order
            self._news.notify_all()


def of_this_process(regroups: bool, ordered: Callable[[Order], None]) -> Channel | None:
    """To the agent that started this process; None outside a run, or when the agent is away."""
    path, member = os.environ.get(SOCKET), os.environ.get(MEMBER)
    if not path or not member:
        return None
    try:
        return Channel(path, member, regroups, ordered)
    except AgentGone:
        return None


def parse_order(body: Mapping[str, Any]) -> Order:
    """Raises ValueError."""
    verb, environment = body.get("verb"), body.get("environment", {})
    if verb not in VERBS:
        raise ValueError(f"an order {verb!r} is not known")
    if not isinstance(environment, dict) or len(environment) > MOST_VARIABLES:
        raise ValueError("`environment` is not an object of texts")
    pairs = itertools.chain.from_iterable(environment.items())
    if not all(isinstance(part, str) and "\0" not in part for part in pairs):
        raise ValueError("`environment` holds something that is not a text")
    return Order(verb, _generation(body), environment)


def _generation(body: Mapping[str, Any]) -> int:
    generation = body.get("generation")
    if type(generation) is not int or generation < 0:
        raise ValueError(f"`generation` is {generation!r}")
    return generation


def _parse(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise ValueError("a line of the agent is cut off or too long")
    try:
        body = json.loads(line)
    except RecursionError as error:
        raise ValueError("a message is nested too deep") from error
    if not isinstance(body, dict):
        raise ValueError("a message is not an object")
    return body
