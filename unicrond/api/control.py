"""Commands from the API's process to the loop: one JSON line each way over a Unix socket (0600).

    {"v": 1, "command": "mode", "mode": "paused", "run_id": null, "who": "alice", "why": "..."}
    {"v": 1, "command": "review", "incident_id": 12, "proof": "refuted", "official": false,
     "who": "alice", "why": "..."}
    {"v": 1, "command": "share", "run_id": 4711, "weight": 2.0, "floor_nodes": null, "who": "root",
     "why": "..."}
    {"v": 1, "command": "pause", "scope": "action", "value": "drain", "on": true, "who": "ada",
     "why": "..."}
    {"v": 1, "command": "node", "node": "n7", "drain": true, "who": "root", "why": "..."}
    {"v": 1, "command": "audit", "entry": {"at": 1.7e9, "who": "alice", ...}}: is only noted
    {"v": 1, "command": "resize", "run_id": 4711, "nodes": 4, "who": "root", "why": "..."}
    {"ok": true}     or     {"ok": false, "error": "a sentence"}

Rights were checked by the API (rights.py); the loop's side accepts its own user and root only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from db.audit import Audited
from db.codec import decode, encode
from unicrond.api.sockets import bind_unix, peer_uid
from unicrond.errors import BadInput, Unavailable, UnicronError
from unicrond.link.messages import MOST_NODES, MOST_WEIGHT
from unicrond.model.decision import Mode
from unicrond.model.events import (
    Event,
    ModeSet,
    NodeAsked,
    PauseSet,
    ResizeAsked,
    ReviewGiven,
    ShareSet,
)
from unicrond.model.incident import Proof
from unicrond.model.pause import Pause, PauseScope

log = logging.getLogger(__name__)

VERSION = 1
MAX_LINE_BYTES = 64 * 1024
REPLY_TIMEOUT_SECONDS = 5.0
MAX_WHY = 500

Emit = Callable[[Event, Callable[[], None] | None], bool]
"""Takes an event and what to call, in the loop, once it is stored; False when it cannot now."""


class Control(Protocol):
    def set_mode(self, mode: Mode, run_id: int | None, who: str, why: str) -> None:
        """Returns once the loop has stored it; raises Unavailable when that is not known."""

    def review(self, incident_id: int, proof: Proof, who: str, official: bool, why: str) -> None:
        """In the same way."""

    def set_share(
        self, run_id: int, weight: float | None, floor_nodes: int | None, who: str, why: str
    ) -> None:
        """In the same way."""

    def resize(self, run_id: int, nodes: int, who: str, why: str) -> None:
        """In the same way."""

    def pause(self, pause: Pause, on: bool) -> None:
        """In the same way."""

    def node(self, name: str, drain: bool, who: str, why: str) -> None:
        """In the same way."""

    def note(self, entry: Audited) -> None:
        """Puts a command into the audit log; raises Unavailable when that is not known."""


class ControlClient:
    """The API's side. Blocks; to be called in a thread."""

    def __init__(self, path: str) -> None:
        self._path = path

    def set_mode(self, mode: Mode, run_id: int | None, who: str, why: str) -> None:
        self._command("mode", mode=mode, run_id=run_id, who=who, why=why)

    def review(self, incident_id: int, proof: Proof, who: str, official: bool, why: str) -> None:
        self._command(
            "review", incident_id=incident_id, proof=proof, official=official, who=who, why=why
        )

    def set_share(
        self, run_id: int, weight: float | None, floor_nodes: int | None, who: str, why: str
    ) -> None:
        self._command(
            "share", run_id=run_id, weight=weight, floor_nodes=floor_nodes, who=who, why=why
        )

    def resize(self, run_id: int, nodes: int, who: str, why: str) -> None:
        self._command("resize", run_id=run_id, nodes=nodes, who=who, why=why)

    def node(self, name: str, drain: bool, who: str, why: str) -> None:
        self._command("node", node=name, drain=drain, who=who, why=why)

    def pause(self, pause: Pause, on: bool) -> None:
        words = {"scope": pause.scope, "value": pause.value, "who": pause.who, "why": pause.why}
        self._command("pause", on=on, **words)

    def note(self, entry: Audited) -> None:
        self._command("audit", entry=encode(entry))

    def _command(self, command: str, **words: object) -> None:
        reply = self._ask({"v": VERSION, "command": command, **words})
        if not reply.get("ok"):
            raise Unavailable(str(reply.get("error", "unicrond gave no reason")))

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(2 * REPLY_TIMEOUT_SECONDS)
                connection.connect(self._path)
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile("rb") as reader:
                    reply = json.loads(reader.readline(MAX_LINE_BYTES))
        except (OSError, ValueError) as error:
            raise Unavailable(f"unicrond's loop does not answer ({error})") from error
        return reply if isinstance(reply, dict) else {}


class ControlServer:
    """The loop's side. `now` gives the time of the events; `note` keeps the audit log; `refuse`
    says why nothing is taken, "" where it is."""

    def __init__(
        self, path: str, emit: Emit, now: Callable[[], float],
        note: Callable[[Audited], None] = lambda _: None, refuse: Callable[[], str] = lambda: "",
    ) -> None:  # fmt: skip
        self._path, self._emit, self._now, self._note = Path(path), emit, now, note
        self._refuse = refuse
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        listener = bind_unix(self._path, 0o600)
        self._server = await asyncio.start_unix_server(
            self._serve, sock=listener, limit=MAX_LINE_BYTES
        )

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if peer_uid(writer.get_extra_info("socket")) in (0, os.getuid()):
                line = await asyncio.wait_for(reader.readline(), REPLY_TIMEOUT_SECONDS)
                writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            log.warning("control: a command was dropped: %s", error)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        if why := self._refuse():
            return {"ok": False, "error": why}
        try:
            event = read_command(line, self._now())
            if isinstance(event, Audited):
                self._note(event)
                return {"ok": True}
        except UnicronError as error:
            return {"ok": False, "error": str(error)}
        stored = asyncio.Event()
        if not self._emit(event, stored.set):
            return {"ok": False, "error": "unicrond has too much to do now: try again"}
        try:
            await asyncio.wait_for(stored.wait(), REPLY_TIMEOUT_SECONDS)
        except asyncio.TimeoutError:
            return {"ok": False, "error": "unicrond took the command but has not stored it yet"}
        return {"ok": True}


def read_command(line: bytes, now: float) -> Event | Audited:
    """Raises BadInput."""
    try:
        data = json.loads(line)
        version, command = data["v"], data["command"]
        if (version, command) == (VERSION, "audit"):
            return decode(Audited, data["entry"])
        read = _READERS.get(command) if version == VERSION else None
        if read is None:
            raise BadInput(
                f"control: this unicrond does not know command {command} of version {version}"
            )
        return read(data, now, str(data["who"]), str(data["why"])[:MAX_WHY])
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"control: not a command: {error}") from None


def _mode(data: dict[str, Any], now: float, who: str, why: str) -> Event:
    run_id = None if data["run_id"] is None else _number(data["run_id"])
    return ModeSet(now, Mode(data["mode"]), _named(who, why), run_id)


def _review(data: dict[str, Any], now: float, who: str, why: str) -> Event:
    official = data["official"] is True
    return ReviewGiven(now, _number(data["incident_id"]), Proof(data["proof"]), who, official, why)


def _share(data: dict[str, Any], now: float, who: str, why: str) -> Event:
    weight, floor = data["weight"], data["floor_nodes"]
    if weight is not None and not 0 < weight <= MOST_WEIGHT:
        raise ValueError(f"weight {weight} is not above 0 and at most {MOST_WEIGHT:g}")
    if floor is not None and not 0 <= _number(floor) <= MOST_NODES:
        raise ValueError(f"floor_nodes {floor} is not between 0 and {MOST_NODES}")
    return ShareSet(now, _number(data["run_id"]), _named(who, why), weight, floor)


def _resize(data: dict[str, Any], now: float, who: str, why: str) -> Event:
    nodes = _number(data["nodes"])
    if not 1 <= nodes <= MOST_NODES:
        raise ValueError(f"nodes {nodes} is not between 1 and {MOST_NODES}")
    return ResizeAsked(now, _number(data["run_id"]), nodes, _named(who, why))


def _named(who: str, why: str) -> str:
    return f"{who} ({why})" if why else who


def _node(data: dict[str, Any], now: float, who: str, why: str) -> Event:
    return NodeAsked(now, str(data["node"])[:MAX_WHY], data["drain"] is True, _named(who, why))


def _pause(data: dict[str, Any], now: float, who: str, why: str) -> Event:
    pause = Pause(PauseScope(data["scope"]), str(data["value"])[:MAX_WHY], now, who, why)
    return PauseSet(pause, data["on"] is True)


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a number")
    return value


_READERS = {
    "mode": _mode, "review": _review, "share": _share, "resize": _resize, "pause": _pause,
    "node": _node,
}  # fmt: skip
