"""The socket between agent and ranks, spoken to as a rank would."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from unicrond.agent.ranksocket import RankSocket, private_folder
from unicrond.agent.store import MAX_BYTES, Store
from unicrond.errors import BadInput, Refused
from unicrond.model.run import Slot

SLOT = Slot(5, "o.5", "n1", 1)


class Rank:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, kind: str, **fields: object) -> None:
        self.raw(json.dumps({"v": 1, "type": kind, **fields}).encode() + b"\n")

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    async def hear(self) -> dict[str, Any]:
        try:
            line = await asyncio.wait_for(self.reader.readline(), 5)
        except ConnectionResetError:  # we had said more than was read
            line = b""
        found: dict[str, Any] = json.loads(line) if line else {"type": "closed"}
        return found

    async def ask(self, kind: str, **fields: object) -> dict[str, Any]:
        self.say(kind, id=1, **fields)
        return await self.hear()


class World:
    def __init__(self, folder: Path) -> None:
        self.progress: list[tuple[int, int]] = []
        self.exceptions: list[tuple[str, str, bool]] = []
        self.socket = RankSocket(
            folder,
            self.place,
            lambda g, i: self.progress.append((g, i)),
            lambda *told: self.exceptions.append(told),
        )
        self.ranks: list[Rank] = []

    def place(self, member: str) -> tuple[Slot, int] | None:
        return (SLOT, 8) if member in ("o.5", "o.6") else None

    async def rank(self, greet: bool = True, member: str = "o.5", **fields: object) -> Rank:
        rank = Rank(*await asyncio.open_unix_connection(self.socket.path))
        self.ranks.append(rank)
        if greet:
            assert (await rank.ask("hello", member=member, **fields))["type"] == "welcome"
        return rank


def play(folder: Path, story: Callable[[World], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        world = World(folder)
        await world.socket.open()
        world.socket.begin(3, {})
        try:
            await story(world)
        finally:
            for rank in world.ranks:
                rank.writer.close()
            await asyncio.sleep(0.01)
            world.socket.close()

    folder.mkdir(exist_ok=True)
    asyncio.run(main())


def test_a_member_is_welcomed_with_its_place(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        rank = await world.rank(greet=False)
        welcome = await rank.ask("hello", member="o.5")
        assert welcome == {
            "v": 1,
            "type": "welcome",
            "generation": 3,
            "rank": 5,
            "world_size": 8,
        }

    play(tmp_path / "s", story)


def test_only_the_user_may_open_the_socket(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        assert stat.S_IMODE(world.socket.path.stat().st_mode) == 0o600

    play(tmp_path / "s", story)


def test_values_set_by_one_rank_are_got_by_another(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        one, two = await world.rank(), await world.rank()
        value = base64.b64encode(b"\0address").decode()
        assert await two.ask("get", key="k") == {"v": 1, "type": "reply", "id": 1, "value": None}
        two.say("wait", id=2, keys=["k"], timeout_seconds=5)
        assert "error" not in await one.ask("set", key="k", value=value)
        assert await two.hear() == {"v": 1, "type": "reply", "id": 2}
        assert (await two.ask("get", key="k"))["value"] == value
        assert (await one.ask("add", key="n", amount=2))["value"] == 2
        assert (await two.ask("add", key="n", amount=3))["value"] == 5

    play(tmp_path / "s", story)


def test_waiting_in_vain_ends_with_a_sentence(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        rank = await world.rank()
        assert "0.05 s" in (await rank.ask("wait", keys=["k"], timeout_seconds=0.05))["error"]

    play(tmp_path / "s", story)


def test_whoever_waits_in_a_generation_that_is_over_is_released(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        rank = await world.rank()
        rank.say("wait", id=9, keys=["k"], timeout_seconds=60)
        await asyncio.sleep(0.05)
        world.socket.begin(4, {})
        heard = [await rank.hear(), await rank.hear()]
        order = {"v": 1, "type": "order", "verb": "stop", "generation": 3}
        assert order in heard
        assert any("over" in str(body.get("error")) for body in heard)

    play(tmp_path / "s", story)


def test_a_kept_member_goes_over_to_the_new_generations_store(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        rank, new = await world.rank(regroups=True), await world.rank(member="o.6")
        await rank.ask("set", key="k", value="b2xk")
        world.socket.begin(4, {"o.5": {"rank": 2, "world_size": 7, "environment": {"RANK": "2"}}})
        assert await rank.hear() == {
            "v": 1,
            "type": "order",
            "verb": "regroup",
            "generation": 4,
            "rank": 2,
            "world_size": 7,
            "environment": {"RANK": "2"},
        }
        assert (await new.hear())["verb"] == "stop"
        rank.say("progress", iteration=7)  # under way when the old generation ended
        reporter = await world.rank()
        reporter.say("exception", text="Connection reset", where="in flight")
        await reporter.ask("get", key="k")
        assert world.exceptions == []
        assert "generation 3 is over" in (await rank.ask("set", key="k", value="b2xk"))["error"]
        assert (await rank.ask("hello", member="o.5", regroups=True))["generation"] == 4
        assert (await rank.ask("get", key="k"))["value"] is None
        rank.say("progress", iteration=8)
        await rank.ask("set", key="k", value="bmV3")
        assert (await (await world.rank()).ask("get", key="k"))["value"] == "bmV3"
        assert world.progress == [(3, 7), (4, 8)]
        reporter.say("exception", text="Traceback ...", where="in flight")
        await reporter.ask("get", key="k")
        assert world.exceptions == [("o.5", "Traceback ...", True)]

    play(tmp_path / "s", story)


def test_who_waits_in_a_generation_that_broke_elsewhere_is_released_and_told_to_stay(
    tmp_path: Path,
) -> None:
    async def story(world: World) -> None:
        rank = await world.rank(regroups=True)
        rank.say("wait", id=9, keys=["k"], timeout_seconds=60)
        await asyncio.sleep(0.01)
        world.socket.stay(2)  # long over
        world.socket.stay(3)
        world.socket.stay(3)
        stay = {"v": 1, "type": "order", "verb": "stay", "generation": 3}
        heard = [await rank.hear(), await rank.hear()]
        assert stay in heard and any("is over" in str(body.get("error")) for body in heard)
        assert "error" in await rank.ask("get", key="k"), "stay is said once"
        late = await world.rank()
        assert await late.hear() == stay

    play(tmp_path / "s", story)


def test_only_members_that_say_so_and_are_connected_can_regroup(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        rank, _ = await world.rank(regroups=True), await world.rank(member="o.6")
        assert world.socket.regrouping == {"o.5"}
        rank.writer.close()
        while world.socket.regrouping:
            await asyncio.sleep(0)

    play(tmp_path / "s", story)


def test_a_rank_of_another_version_is_welcomed_where_there_is_a_common_one(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        rank = await world.rank(greet=False)
        rank.raw(b'{"v": 7, "speaks": [1, 7], "type": "hello", "member": "o.5"}\n')
        assert (await rank.hear())["v"] == 1
        rank = await world.rank(greet=False)
        rank.raw(b'{"v": 7, "speaks": [6, 7], "type": "hello", "member": "o.5"}\n')
        assert "the rank 6 to 7" in (await rank.hear())["error"]
        rank = await world.rank(greet=False)
        rank.raw(b'{"v": 7, "speaks": 7, "type": "hello", "member": "o.5"}\n')
        assert "pair" in (await rank.hear())["error"]

    play(tmp_path / "s", story)


def test_progress_and_exceptions_reach_the_agent(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        rank = await world.rank()
        rank.say("progress", iteration=12)
        await rank.ask("get", key="k")
        assert world.progress == [(3, 12)]
        rank.say("exception", text="Traceback ...", where="raised")
        await rank.ask("get", key="k")
        assert world.exceptions == [("o.5", "Traceback ...", False)]

    play(tmp_path / "s", story)


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b'{"v": 2, "type": "get"}\n',
        b'{"v": 1, "type": "fly"}\n',
        b'{"v": 1, "type": 7}\n',
        b'{"v": 1, "type": "set", "key": "k", "value": "%%"}\n',
        b'{"v": 1, "type": "wait", "keys": [], "timeout_seconds": 1}\n',
        b'{"v": 1, "type": "wait", "keys": [1], "timeout_seconds": 1}\n',
        b'{"v": 1, "type": "progress", "iteration": -1}\n',
        b'{"v": 1, "type": "hello", "member": "o.99"}\n',
        b'{"v": 1, "type": "hello", "member": "o.5", "regroups": 1}\n',
        b"[" * 100_000 + b"\n",
        b"x" * (2 << 20),
    ],
)
def test_bad_input_closes_that_connection_only(tmp_path: Path, line: bytes) -> None:
    async def story(world: World) -> None:
        good, bad = await world.rank(), await world.rank()
        bad.raw(line)
        assert (await bad.hear())["type"] == "error"
        assert (await bad.hear())["type"] == "closed"
        assert "error" not in await good.ask("get", key="k")

    play(tmp_path / "s", story)


def test_a_stranger_is_not_welcomed(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        rank = await world.rank(greet=False)
        assert (await rank.ask("hello", member="o.99"))["type"] == "error"
        assert (await rank.hear())["type"] == "closed"

    play(tmp_path / "s", story)


def test_the_store_is_bounded_and_refuses_what_is_no_number() -> None:
    store = Store(1)
    store.set("k", b"x" * MAX_BYTES)
    with pytest.raises(Refused, match="full"):
        store.set("more", b"x")
    store.set("k", b"abc")
    store.set("more", b"x")
    with pytest.raises(Refused, match="not a number"):
        store.add("k", 1)
    with pytest.raises(Refused, match="characters"):
        store.get("k" * 2000)


def test_a_folder_of_somebody_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = private_folder(7, "n1")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert private_folder(7, "n1") == folder
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(BadInput, match="TMPDIR"):
        private_folder(7, "n1")
