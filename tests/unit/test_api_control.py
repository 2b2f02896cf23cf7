"""Commands on their way from the API's process to the loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from db.audit import Audited
from unicrond.api import control
from unicrond.api.control import ControlClient, ControlServer
from unicrond.errors import BadInput, Unavailable
from unicrond.model.decision import Mode
from unicrond.model.events import Event, ModeSet, NodeAsked, PauseSet, ReviewGiven, ShareSet
from unicrond.model.incident import Proof
from unicrond.model.pause import Pause, PauseScope

Stored = Callable[[], None]


class Loop:
    """Takes events and stores them at once, unless told otherwise."""

    def __init__(self, *, takes: bool = True, stores: bool = True) -> None:
        self.events: list[Event] = []
        self._takes, self._stores = takes, stores

    def emit(self, event: Event, stored: Stored | None) -> bool:
        self.events.append(event)
        if self._stores and stored is not None:
            stored()
        return self._takes


def with_server(path: Path, loop: Loop, ask: Callable[[], Awaitable[None]]) -> None:
    async def story() -> None:
        server = ControlServer(str(path), loop.emit, lambda: 100.0)
        await server.start()
        try:
            await ask()
        finally:
            await server.stop()

    asyncio.run(story())
    assert not path.exists()


def set_mode(path: Path, run_id: int | None = None, why: str = "") -> Awaitable[None]:
    client = ControlClient(str(path))
    return asyncio.to_thread(client.set_mode, Mode.PAUSED, run_id, "alice", why)


def test_a_command_becomes_an_event(tmp_path: Path) -> None:
    path, loop = tmp_path / "control.sock", Loop()

    async def ask() -> None:
        assert path.stat().st_mode & 0o777 == 0o600
        await set_mode(path)
        await set_mode(path, 4711, "debugging")
        review = ControlClient(str(path)).review
        await asyncio.to_thread(review, 12, Proof.REFUTED, "bob", False, "an evaluation")
        share = ControlClient(str(path)).set_share
        await asyncio.to_thread(share, 4711, 2.5, None, "root", "a deadline")

    with_server(path, loop, ask)
    assert loop.events == [
        ModeSet(100.0, Mode.PAUSED, "alice"),
        ModeSet(100.0, Mode.PAUSED, "alice (debugging)", 4711),
        ReviewGiven(100.0, 12, Proof.REFUTED, "bob", False, "an evaluation"),
        ShareSet(100.0, 4711, "root (a deadline)", weight=2.5),
    ]


def test_a_pause_becomes_an_event_and_a_note_none(tmp_path: Path) -> None:
    noted: list[Audited] = []
    entry = Audited(5.0, "ada", "admin", "unix", "uid 0", "pause", "action drain", "why")
    pause = Pause(PauseScope.ACTION, "drain", 100.0, "ada", "why")
    loop, path = Loop(), tmp_path / "c"

    async def story() -> None:
        server = ControlServer(str(path), loop.emit, lambda: 100.0, noted.append)
        await server.start()
        client = ControlClient(str(path))
        await asyncio.to_thread(client.pause, pause, True)
        await asyncio.to_thread(client.note, entry)
        await asyncio.to_thread(client.node, "n7", True, "ada", "new memory")
        await server.stop()

    asyncio.run(story())
    assert loop.events == [PauseSet(pause, True), NodeAsked(100.0, "n7", True, "ada (new memory)")]
    assert noted == [entry]


def test_a_loop_that_is_full_says_so(tmp_path: Path) -> None:
    async def ask() -> None:
        with pytest.raises(Unavailable, match="too much to do now: try again"):
            await set_mode(tmp_path / "c")

    with_server(tmp_path / "c", Loop(takes=False), ask)


def test_a_command_that_is_not_stored_in_time_is_not_called_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "REPLY_TIMEOUT_SECONDS", 0.2)

    async def ask() -> None:
        with pytest.raises(Unavailable, match="has not stored it yet"):
            await set_mode(tmp_path / "c")

    with_server(tmp_path / "c", Loop(stores=False), ask)


def test_without_a_loop_the_client_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"unicrond's loop does not answer .*No such file"):
        ControlClient(str(tmp_path / "none")).set_mode(Mode.ACTIVE, None, "root", "")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"words\n",
        b"[]\n",
        b"{}\n",
        b'{"v": 2, "command": "mode", "mode": "active", "run_id": null, "who": "x", "why": ""}\n',
        b'{"v": 1, "command": "stop", "mode": "active", "run_id": null, "who": "x", "why": ""}\n',
        b'{"v": 1, "command": "mode", "mode": "on", "run_id": null, "who": "x", "why": ""}\n',
        b'{"v": 1, "command": "mode", "mode": "active", "run_id": "1", "who": "x", "why": ""}\n',
        b'{"v": 1, "command": ["mode"], "who": "x", "why": ""}\n',
        b'{"v": 1, "command": "review", "incident_id": "1", "proof": "refuted", "official": true,'
        b' "who": "x", "why": ""}\n',
        b'{"v": 1, "command": "review", "incident_id": 1, "proof": "maybe", "official": true,'
        b' "who": "x", "why": ""}\n',
        b'{"v": 1, "command": "share", "run_id": 1, "weight": 0, "floor_nodes": null,'
        b' "who": "x", "why": ""}\n',
        b'{"v": 1, "command": "share", "run_id": 1, "weight": null, "floor_nodes": -1,'
        b' "who": "x", "why": ""}\n',
        b"\xff\xfe\n",
    ],
)
def test_what_is_no_command_is_refused_with_a_sentence(tmp_path: Path, line: bytes) -> None:
    loop, path = Loop(), tmp_path / "c"

    async def ask() -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(line)
        writer.write_eof()
        reply = json.loads(await reader.readline())
        writer.close()
        assert not reply["ok"]
        assert reply["error"].startswith("control: ")

    with_server(path, loop, ask)
    assert loop.events == []


def test_a_line_without_end_is_dropped(tmp_path: Path) -> None:
    loop, path = Loop(), tmp_path / "c"

    async def ask() -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"x" * 1_000_000)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    with_server(path, loop, ask)
    assert loop.events == []


def test_a_socket_that_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "c"
    control.bind_unix(path, 0o600).close()
    assert path.exists()
    with_server(path, Loop(), lambda: set_mode(path))


def test_a_socket_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "c"

    async def ask() -> None:
        with pytest.raises(BadInput, match="another process listens there"):
            control.bind_unix(path, 0o600)
        await set_mode(path)

    with_server(path, Loop(), ask)
