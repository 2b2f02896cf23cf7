"""State that is divided over ranks, in real processes: other numbers of ranks go on from it.

One stage plays all scenes, one after another, each on nodes of its own: so torch is loaded once.
"""

from __future__ import annotations

import itertools
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from stagehand import Stage, stage
from torch.distributed import checkpoint

from unicron import arena

pytestmark = pytest.mark.training
MEMBER = str(Path(__file__).parent / "sharded_member.py")
STEPS = 3
GENERATIONS = itertools.count(1)


class Scene:
    """Generations of one run. `scene.play(n1="ab", n2="c")`: ranks a and b are on node n1, c on
    n2. The name begins with the layout; members read what else is in it."""

    def __init__(self, staged: Stage, name: str) -> None:
        self.staged, self.name, self.disk = staged, name, staged.output("x").parent / "disk"
        self.members: set[str] = set()

    def play(self, **nodes: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """What its ranks restored, and what they had when all that they kept was settled."""
        if self.members:
            self.staged.stay()
        told = [
            (f"{self.name}-{rank}", f"{self.name}-{node}")
            for node, ranks in nodes.items()
            for rank in ranks
        ]
        self.members |= {member for member, _ in told}
        generation = next(GENERATIONS)
        self.staged.begin(generation, *told)
        last = self.staged.until(lambda: self._line("settled", generation), f"{told} settle")
        return self._line("restored", generation) or {}, last

    def _line(self, did: str, generation: int) -> dict[str, Any] | None:
        lines = (line for name in self.members for line in self.staged.lines(name))
        found = (line for line in lines if (line["did"], line["in"]) == (did, generation))
        return next(found, None)

    def had(self, step: int) -> Any:
        """What ranks had as they kept this train step for the first time."""
        lines = (line for name in self.members for line in self.staged.lines(name))
        return next(one["has"] for one in lines if (one["did"], one["step"]) == ("kept", step))

    def end(self, ranks: str) -> None:
        for rank in ranks:
            self.staged.kill(f"{self.name}-{rank}")

    def parts(self, node: str, step: int) -> list[Path]:
        folder = self.staged.arena(f"{self.name}-{node}")
        found = sorted(folder.glob("set-*/part-*"))
        return [path for path in found if arena.step_in(path) == step]

    def said(self) -> str:
        return "".join(self.staged.output(member).read_text() for member in self.members)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("s")
    with stage(folder, MEMBER, str(STEPS), str(folder / "disk")) as made:
        yield made


@pytest.fixture
def scene(staged: Stage, request: pytest.FixtureRequest) -> Iterator[Scene]:
    made = Scene(staged, request.param)
    yield made
    for member in made.members:
        staged.kill(member)


def spoil(path: Path) -> None:
    copy, raw = arena.read(path), bytearray(path.read_bytes())
    assert copy is not None
    raw[raw.index(bytes(copy.data[:64]))] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("scene", ["fsdp2", "ddp"], indirect=True)
def test_four_ranks_keep_what_three_and_then_six_restore(scene: Scene) -> None:
    first, four = scene.play(n1="abcd")
    assert first["step"] == 0 and first["has"] != four["has"]
    scene.end("a")
    restored, three = scene.play(n1="bcd")
    assert (restored["step"], restored["has"]) == (STEPS, four["has"])
    assert "exp_avg" in str(restored["has"]["optimizer"])
    restored, _ = scene.play(n1="bcdefg")
    assert (restored["step"], restored["has"]) == (2 * STEPS, three["has"])
    assert three["has"] != four["has"]


@pytest.mark.parametrize("scene", ["fsdp2_two"], indirect=True)
def test_ranks_of_other_nodes_hand_over_what_they_hold(scene: Scene) -> None:
    _, four = scene.play(n1="ab", n2="cd")
    scene.end("b")
    restored, three = scene.play(n1="a", n2="cd")  # b's part has outlived it
    assert (restored["step"], restored["has"]) == (STEPS, four["has"])
    restored, _ = scene.play(n1="a", n2="cd", n3="ef")  # n3 has nothing
    assert (restored["step"], restored["has"]) == (2 * STEPS, three["has"])


@pytest.mark.parametrize("scene", ["tensor"], indirect=True)
def test_tensor_parallel_of_two_becomes_that_of_one(scene: Scene) -> None:
    _, four = scene.play(n1="ab", n2="cd")
    scene.end("bd")
    restored, _ = scene.play(n1="a", n2="c")
    assert (restored["step"], restored["has"]) == (STEPS, four["has"])


@pytest.mark.parametrize("scene", ["hsdp"], indirect=True)
def test_a_node_may_be_lost_where_another_one_has_a_whole_replica(scene: Scene) -> None:
    _, four = scene.play(n1="ab", n2="cd")
    scene.end("ab")
    restored, _ = scene.play(n2="cd")
    assert (restored["step"], restored["has"]) == (STEPS, four["has"])


@pytest.mark.parametrize("scene", ["fsdp2_disk"], indirect=True)
def test_what_no_node_has_is_read_from_storage(scene: Scene) -> None:
    _, four = scene.play(n1="ab", n2="cd")
    scene.end("abcd")
    for path in scene.parts("n2", STEPS):
        path.unlink()
    assert of_stock_reader(scene.disk, "model.0.weight") == four["has"]["model"]["0.weight"]
    restored, _ = scene.play(n1="efg")
    assert (restored["step"], restored["has"]) == (STEPS, four["has"])
    assert "train step 3 in memory is refused: what rank 2, 3 of 4 kept" in scene.said()
    assert "train step 3 on storage is restored" in scene.said()


def of_stock_reader(disk: Path, name: str) -> list[Any]:
    newest = max(path.parent for path in disk.glob("*/.metadata"))
    whole = {name: torch.empty(12, 10)}
    with warnings.catch_warnings(action="ignore"):  # that there is no process group
        checkpoint.load(whole, checkpoint_id=newest)
    return [list(whole[name].shape), zlib.crc32(whole[name].numpy().tobytes())]


@pytest.mark.parametrize("scene", ["fsdp2_spoilt"], indirect=True)
def test_a_train_step_with_a_spoilt_part_is_passed_over(scene: Scene) -> None:
    scene.play(n1="abc")
    scene.end("abc")
    spoil(scene.parts("n1", STEPS)[1])
    restored, _ = scene.play(n1="de")
    assert (restored["step"], restored["has"]) == (STEPS - 1, scene.had(STEPS - 1))
    assert "train step 3 in memory is refused: what rank 1 of 3 kept" in scene.said()


@pytest.mark.parametrize("scene", ["fsdp2_nan"], indirect=True)
def test_nobody_writes_over_the_last_train_step_that_all_have_whole(scene: Scene) -> None:
    scene.play(n1="abc")
    scene.end("abc")
    assert [len(scene.parts("n1", step)) for step in (1, 2, 3)] == [3, 2, 2]
    restored, _ = scene.play(n1="de")
    assert (restored["step"], restored["has"]) == (1, scene.had(1))
    assert "train step 2 is not kept: it has NaN" in scene.said()
    assert "train step 3 in memory is refused: what rank 1 of 3 kept" in scene.said()
