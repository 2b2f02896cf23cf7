"""The Unix socket between this agent and its ranks; docs/protocol.md. JSON, a line a message.

Bad input closes that one connection and nothing else. Unmodified scripts never open it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from unicrond.agent.store import Store
from unicrond.errors import BadInput, ProtocolError, Refused
from unicrond.link import fields
from unicrond.link.frames import Body
from unicrond.link.handshake import Versions
from unicrond.model.run import Slot

log = logging.getLogger(__name__)
SPEAKS = Versions(oldest=1, newest=1)
VERSION = SPEAKS.newest
LINE_BYTES = 1 << 20
MAX_CONNECTIONS = 1024
MAX_WAIT_SECONDS = 3600.0
MAX_KEYS_WAITED = 1024
LONGEST_SENTENCE = 4096


def private_folder(run_id: int, node: str) -> Path:
    """This agent's own folder for its socket; raises BadInput when somebody else holds the name."""
    folder = Path(tempfile.gettempdir(), f"unicron-{os.getuid()}-{run_id}-{node}")
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise BadInput(f"{folder} belongs to somebody else: remove it or set TMPDIR") from None
        folder.chmod(0o700)
    except OSError as error:
        raise BadInput(f"{folder}: {error}: set TMPDIR to a folder on this node") from error
    return folder


@dataclass(frozen=True, slots=True)
class _Session:
    """Of one connection. A member that is kept stays in its old store, where it can do nothing any
    more, until it says hello again: what it had sent before belongs to the old generation."""

    member: str
    regroups: bool
    store: Store


class RankSocket:
    """`place` finds slot and world size of a member of this generation that runs here; `exception`
    takes a member, its traceback, and whether it may still be caught; `restored`, a sentence."""

    def __init__(
        self,
        folder: Path,
        place: Callable[[str], tuple[Slot, int] | None],
        progress: Callable[[int, int], None],
        exception: Callable[[str, str, bool], None],
        restored: Callable[[str, str], None] = lambda member, text: None,
    ) -> None:
        self.path = folder / "ranks.sock"
        self._place = place
        self._progress = progress
        self._exception = exception
        self._restored = restored
        self._store = Store(-1)
        self._changed = asyncio.Event()
        self._sessions: dict[asyncio.StreamWriter, _Session] = {}
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self.path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, self.path, limit=LINE_BYTES)
        finally:
            os.umask(before)

    def close(self) -> None:
        self.begin(-1, {})
        if self._server:
            self._server.close()
        shutil.rmtree(self.path.parent, ignore_errors=True)

    @property
    def regrouping(self) -> set[str]:
        """Members that can go over into a new generation."""
        return {session.member for session in self._sessions.values() if session.regroups}

    def begin(self, generation: int, kept: Mapping[str, Body]) -> None:
        """A new generation: members that it keeps are told their place, the others to stop."""
        self._revoke()
        self._store = Store(generation)
        for writer, session in self._sessions.items():
            place = kept.get(session.member)
            if place is None:
                _order(writer, "stop", session.store.generation)
            else:
                _order(writer, "regroup", generation, **place)

    def stay(self, generation: int) -> None:
        """This generation is broken elsewhere: its members are to wait for what comes of it."""
        if generation != self._store.generation or self._store.revoked:
            return
        self._revoke()
        for writer in self._sessions:
            _order(writer, "stay", generation)

    def _revoke(self) -> None:
        """Whoever waits in the store is released."""
        self._store.revoked = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._sessions) >= MAX_CONNECTIONS:
                raise ProtocolError(f"more than {MAX_CONNECTIONS} connections")
            await self._session(reader, writer)
        except (ProtocolError, ValueError) as error:  # ValueError: a line over the limit
            log.warning("rank socket: %s", error)
            _say(writer, {"type": "error", "error": str(error)})
        except OSError as error:
            log.info("rank socket: %s", error)
        finally:
            self._sessions.pop(writer, None)
            writer.close()

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = self._greet(writer, _parse(await reader.readline(), hello=True))
        while line := await reader.readline():
            body = _parse(line)
            if body["type"] == "hello":
                session = self._greet(writer, body)
            elif body["type"] == "progress":
                self._progress(session.store.generation, fields.integer(body, "iteration"))
            elif body["type"] == "exception":
                self._take_exception(session.member, body)
            elif body["type"] == "restored":
                self._restored(session.member, fields.text(body, "text", LONGEST_SENTENCE))
            else:
                reply = await self._answer(session.store, body)
                _say(writer, {"type": "reply", "id": body.get("id"), **reply})
                await writer.drain()

    def _greet(self, writer: asyncio.StreamWriter, hello: Body) -> _Session:
        member = fields.text(hello, "member", 300)
        found = self._place(member) if hello["type"] == "hello" else None
        if found is None:
            raise ProtocolError("the first message is a hello of a member that runs here")
        slot, world = found
        session = _Session(member, fields.boolean(hello, "regroups"), self._store)
        self._sessions[writer] = session
        place = {"rank": slot.rank, "world_size": world}
        generation = max(0, session.store.generation)  # that of an agent that had none yet is -1
        _say(writer, {"type": "welcome", "generation": generation, **place})
        if session.store.revoked:
            _order(writer, "stay", session.store.generation)
        return session

    def _take_exception(self, member: str, body: Body) -> None:
        """What a kept member raises as it leaves its generation is no failure of the new one."""
        in_flight = fields.text(body, "where", 100) != "raised"
        text = fields.text(body, "text", LINE_BYTES)
        sessions = [session for session in self._sessions.values() if session.member == member]
        if all(session.store is self._store for session in sessions):
            self._exception(member, text, in_flight)

    async def _answer(self, store: Store, body: Body) -> Body:
        try:
            return await self._store_operation(store, body)
        except Refused as error:
            return {"error": str(error)}

    async def _store_operation(self, store: Store, body: Body) -> Body:
        kind = body["type"]
        if kind == "set":
            store.set(fields.text(body, "key"), _unpacked(fields.text(body, "value", LINE_BYTES)))
            self._wake()
            return {}
        if kind == "get":
            value = store.get(fields.text(body, "key"))
            return {"value": None if value is None else base64.b64encode(value).decode()}
        if kind == "add":
            amount = fields.integer(body, "amount", -fields.LARGEST)
            total = store.add(fields.text(body, "key"), amount)
            self._wake()
            return {"value": total}
        if kind == "wait":
            return await self._wait(store, body)
        raise ProtocolError(f"no message of type {kind!r} is known")

    async def _wait(self, store: Store, body: Body) -> Body:
        keys = body.get("keys")
        if not isinstance(keys, list) or not 1 <= len(keys) <= MAX_KEYS_WAITED:
            raise ProtocolError(f"`keys` is not a list of 1 to {MAX_KEYS_WAITED} texts")
        if not all(isinstance(key, str) for key in keys):
            raise ProtocolError("`keys` holds something that is not a text")
        seconds = fields.number(body, "timeout_seconds", high=MAX_WAIT_SECONDS)
        deadline = asyncio.get_running_loop().time() + seconds
        while not store.has_all(keys):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return {"error": f"not all keys were set within {seconds:g} s"}
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except asyncio.TimeoutError:
                continue
        return {}


def _parse(line: bytes, hello: bool = False) -> Body:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a line is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ProtocolError("a message is not an object")
    if hello:
        _check_versions(body)
    elif body.get("v") != VERSION:
        raise ProtocolError(f"a message is not of version {VERSION}")
    fields.text(body, "type", 100)
    body.setdefault("type", "")
    return body


def _check_versions(hello: Body) -> None:
    """What trains may be older or newer than its agent."""
    oldest, newest = SPEAKS.oldest, SPEAKS.newest
    offered = hello.get("speaks", [hello.get("v")] * 2)
    if type(offered) is not list or [type(end) for end in offered] != [int, int]:
        raise ProtocolError("`speaks` is not a pair of integers")
    if SPEAKS.common(Versions(*offered)) is None:
        raise ProtocolError(
            f"this agent speaks versions {oldest} to {newest} of the rank socket, the rank "
            f"{offered[0]} to {offered[1]}: install the unicron of this cluster"
        )


def _order(writer: asyncio.StreamWriter, verb: str, generation: int, **place: object) -> None:
    _say(writer, {"type": "order", "verb": verb, "generation": generation, **place})


def _say(writer: asyncio.StreamWriter, body: Body) -> None:
    if not writer.is_closing():
        writer.write(json.dumps({"v": VERSION, **body}).encode() + b"\n")


def _unpacked(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ProtocolError("`value` is not base64") from error
