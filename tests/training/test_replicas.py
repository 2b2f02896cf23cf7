"""Copies of a node's ranks on other nodes: real ranks, real keepers, each node a folder of its own.
What the agents' links do, naming keepers to each other, is done here by hand.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from stagehand import Stage, stage
from test_sharded import MEMBER, STEPS, Scene, spoil

from unicron import arena, replicated
from unicrond.agent import ring
from unicrond.agent.keeper import Keeper
from unicrond.agent.replicas import Aim, Peer, Replicas
from unicrond.link.bulk import Pace

pytestmark = pytest.mark.training
SECRET = b"s" * 32


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("r")
    with stage(folder, MEMBER, str(STEPS), str(folder / "disk")) as made:
        yield made


@contextlib.contextmanager
def replicated_among(
    folders: dict[str, Path], secrets: dict[str, bytes] | None = None, pace: float = 1e9
) -> Iterator[dict[str, Keeper]]:
    """Until it is left, each node's copies go to the next one too."""
    secret = dict.fromkeys(folders, SECRET) | (secrets or {})
    keepers, senders = {}, []
    for number, (node, folder) in enumerate(folders.items()):
        keepers[node] = Keeper(folder, 4711 + number, secret[node])
        keepers[node].generation = 1
        keepers[node].start()
    for node, folder in folders.items():
        sender = Replicas(folder, node, secret[node], Pace(pace), True, lambda _: None)
        (to,) = ring.keepers(node, list(folders), {}, 1)
        peer = Peer(to, f"agent-{to}", "127.0.0.1", keepers[to].port)
        sender.aim = Aim(1, 1, (peer,))
        sender.start()
        senders.append(sender)
    try:
        yield keepers
    finally:
        for sender in senders:
            sender.stop()
        for keeper in keepers.values():
            keeper.stop()


def until_safe(folder: Path, step: int, rank: str = "0") -> None:
    deadline = time.monotonic() + 30
    while step not in replicated.read(folder).safe.get(rank, ()):
        assert time.monotonic() < deadline, replicated.read(folder)
        time.sleep(0.02)


def play_and_replicate(staged: Stage, scene: Scene) -> dict[str, object]:
    """Four ranks on two nodes; what they had as all of it was on both."""
    folders = {node: staged.arena(f"{scene.name}-{node}") for node in ("n1", "n2")}
    with replicated_among(folders):
        deadline = time.monotonic() + 10
        while not all((one / replicated.NAME).exists() for one in folders.values()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        _, four = scene.play(n1="ab", n2="cd")
        for node, ranks in (("n1", "01"), ("n2", "23")):
            for rank in ranks:
                until_safe(folders[node], STEPS, rank)
    return four


def lose(staged: Stage, scene: Scene, node: str, ranks: str) -> None:
    scene.end(ranks)
    shutil.rmtree(staged.arena(f"{scene.name}-{node}"))


def test_a_lost_node_is_replaced_by_one_that_reads_from_the_peer(staged: Stage) -> None:
    scene = Scene(staged, "fsdp2_lost")
    four = play_and_replicate(staged, scene)
    lose(staged, scene, "n1", "ab")
    restored, more = scene.play(n2="cd", n3="ef")
    assert (restored["step"], restored["has"]) == (STEPS, four["has"])
    assert "train step 3 in memory is restored" in staged.restored
    scene.end("cdef")
    assert more["step"] == 2 * STEPS


def test_what_the_peer_has_damaged_is_refused_for_the_step_before(staged: Stage) -> None:
    scene = Scene(staged, "fsdp2_harm")
    play_and_replicate(staged, scene)
    lose(staged, scene, "n1", "ab")
    (replica,) = [one for one in scene.parts("n2", STEPS) if one.name.startswith("part-1.")]
    spoil(replica)
    restored, _ = scene.play(n2="cd", n3="ef")
    assert (restored["step"], restored["has"]) == (STEPS - 1, scene.had(STEPS - 1))
    (said,) = [one for one in staged.restored if "train step 2" in one]
    assert f"/{replica.name} of train step 3 in memory is refused: it is damaged" in said
    assert "what rank 1 of 4 kept is not whole or not within reach" in said
    assert said.endswith("train step 2 in memory is restored")
    scene.end("cdef")


def test_a_damaged_part_is_read_from_its_replica(staged: Stage) -> None:
    scene = Scene(staged, "fsdp2_own")
    four = play_and_replicate(staged, scene)
    scene.end("abcd")
    (own,) = [
        p for p in scene.parts("n1", STEPS) if p.name.startswith("part-0.") and "@" not in p.name
    ]
    spoil(own)
    restored, _ = scene.play(n1="ef", n2="gh")
    assert (restored["step"], restored["has"]) == (STEPS, four["has"])
    scene.end("efgh")


# ---------------------------------------------------------------- keepers alone


SET = f"set-{1:020d}"


def write(folder: Path, slot: int, step: int, data: bytes) -> Path:
    mine = arena.Slot(folder / SET / f"part-0.{slot}")
    place = mine.begin(step, b"{}", len(data))
    place[:] = data
    mine.finish(place)
    return mine.path


def two(folder: Path) -> dict[str, Path]:
    folders = {node: folder / node for node in ("n1", "n2")}
    for one in folders.values():
        arena.make_private(one)
    return folders


def test_a_keeper_of_another_run_takes_nothing(tmp_path: Path) -> None:
    folders = two(tmp_path)
    write(folders["n1"], 0, 1, b"x" * 1000)
    with replicated_among(folders, {"n2": b"t" * 32}):
        time.sleep(0.5)
        assert replicated.read(folders["n1"]).safe == {}
    assert list(folders["n2"].glob("set-*/*")) == []


def test_what_changes_on_its_way_is_not_kept_until_it_is_whole(tmp_path: Path) -> None:
    folders = two(tmp_path)
    path = write(folders["n1"], 0, 1, bytes(1000))
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + b"x")  # not what the head says
    with replicated_among(folders):
        time.sleep(0.5)
        assert arena.read(folders["n2"] / SET / "part-0.0@n1") is None
        path.write_bytes(raw)
        until_safe(folders["n1"], 1)
    assert arena.read(folders["n2"] / SET / "part-0.0@n1") is not None


def test_an_older_set_or_generation_is_refused(tmp_path: Path) -> None:
    folders = two(tmp_path)
    (folders["n2"] / f"set-{2:020d}").mkdir()
    write(folders["n1"], 0, 1, b"x")
    with replicated_among(folders) as keepers:
        time.sleep(0.5)
        assert replicated.read(folders["n1"]).safe == {}
        (folders["n2"] / f"set-{2:020d}").rmdir()
        keepers["n2"].generation = 2
        time.sleep(1.5)
        assert replicated.read(folders["n1"]).safe == {}
        keepers["n2"].generation = 1
        until_safe(folders["n1"], 1)


def test_an_agent_that_is_started_again_sends_nothing_twice(tmp_path: Path) -> None:
    folders = two(tmp_path)
    write(folders["n1"], 0, 1, b"x" * 1000)
    kept = folders["n2"] / SET / "part-0.0@n1"
    times = []
    for _ in range(2):
        with replicated_among(folders):
            until_safe(folders["n1"], 1)
        times.append(kept.stat().st_mtime_ns)
        (folders["n1"] / replicated.NAME).unlink()
    assert times[0] == times[1]


def test_bytes_go_no_faster_than_allowed(tmp_path: Path) -> None:
    folders = two(tmp_path)
    write(folders["n1"], 0, 1, bytes(30 << 20))
    begun = time.monotonic()
    with replicated_among(folders, pace=20 << 20):
        until_safe(folders["n1"], 1)
    assert time.monotonic() - begun > 1.4


def test_a_keeper_without_room_says_so_and_ranks_go_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = two(tmp_path)
    write(folders["n1"], 0, 1, bytes(1000))
    monkeypatch.setattr("unicron.room.available_bytes", lambda: 1000)
    monkeypatch.setattr("unicrond.agent.replicas.STUCK_SECONDS", 0.2)
    with replicated_among(folders):
        deadline = time.monotonic() + 10
        while "n2: no room for copies of n1" not in (told := replicated.read(folders["n1"])).off:
            assert time.monotonic() < deadline, told
            time.sleep(0.02)
    assert replicated.safe(told, SET, 0, [1]) == (1,)
