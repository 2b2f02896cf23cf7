"""The strict loop in real processes: members are lost at every place of a train step."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stagehand import Stage, stage

from unicron import Run
from unicron.errors import Revoked
from unicron.together import Pending

pytestmark = pytest.mark.training
MEMBER = str(Path(__file__).parent / "strict_member.py")
COUNT = 12


class Scene:
    """Plays unicrond: who is gone is left out, in the next generation."""

    def __init__(self, staged: Stage, folder: Path, names: str) -> None:
        self.staged, self.folder, self.names, self.generation = staged, folder, names, 1
        staged.begin(1, *((name, f"n{name}") for name in names))

    def tell(self, member: str, where: str, what: str = "SIGKILL") -> None:
        (self.folder / member).write_text(f"{where} {what}")

    def gone(self, *members: str) -> None:
        self.staged.until(lambda: not any(map(self.staged.runs, members)), f"{members} die")

    def stopped(self, member: str) -> None:
        status = Path(f"/proc/{self.staged.ranks[member].pid}/stat")
        self.staged.until(lambda: status.read_text().split()[2] == "T", f"{member} stops")

    def heal(self, names: str, *, planned: bool = False) -> None:
        self.generation, self.names = self.generation + 1, names
        if not planned:
            self.staged.stay()
        self.staged.begin(self.generation, *((name, f"n{name}") for name in names))

    def lines(self, members: str) -> list[dict[str, Any]]:
        return [line for name in members for line in self.staged.lines(name) if "step" in line]

    def trained(self, members: str, step: int) -> None:
        def all_did() -> bool:
            return all(any(line["step"] >= step for line in self.lines(m)) for m in members)

        self.staged.until(all_did, f"{members} at train step {step}")

    def ended(self) -> None:
        self.staged.until(lambda: not any(map(self.staged.runs, self.names)), "the end")
        assert {self.staged.ranks[name].returncode for name in self.names} == {0}


def held(scene: Scene, members: str, last: int) -> None:
    """Each train step counts, each micro-batch of it once in every bucket, and all ranks of all
    generations have come to the same parameters."""
    lines = scene.lines(members)
    assert {line["step"] for line in lines} == set(range(1, last + 1))
    assert all(line["exact"] for line in lines)
    for step in range(1, last + 1):
        norms = [line["norm"] for line in lines if line["step"] == step]
        assert max(norms) - min(norms) <= 1e-12 * max(norms)
    entered = [line for name in members for line in scene.staged.lines(name) if "entered" in line]
    assert len(entered) == len(members), "no process and no function was entered twice"


class Late:
    """A collective that is not there at the first look, and then ended as told."""

    def __init__(self, raises: str, ends: bool) -> None:
        self._raises, self._ends, self._looks = raises, ends, 0

    def wait(self, limit: timedelta | None = None) -> None:
        self._looks += 1
        if (limit is not None and self._looks == 1) or not self._ends:
            raise RuntimeError("Operation timed out!")
        if self._raises:
            raise RuntimeError(self._raises)

    def is_completed(self) -> bool:
        return self._ends and self._looks > 1


def test_a_collective_is_waited_for_and_given_up_once_its_generation_is_over() -> None:
    def pending(work: Late, over_for: float) -> Pending:
        run = Run(1, 0, 2, 0, 0, elastic=SimpleNamespace(over_for=lambda: over_for))
        return Pending(work, run, on_gpu=False)

    pending(Late("", ends=True), 0.0).wait()
    with pytest.raises(RuntimeError, match="closed by peer"):
        pending(Late("closed by peer", ends=True), 0.0).wait()
    with pytest.raises(Revoked):
        pending(Late("", ends=False), 3.0).wait()


def test_members_are_lost_one_after_another_at_all_places(tmp_path: Path) -> None:
    with stage(tmp_path, MEMBER, "16", str(COUNT), "0.01", str(tmp_path)) as staged:
        scene = Scene(staged, tmp_path, "abcdef")
        places = ("micro-3-1", "bucket-5-1", "reduce-7", "stepped-9", "committed-11")
        for member, place in zip("abcde", places, strict=True):
            scene.tell(member, place)
        for number, member in enumerate("abcde"):
            scene.gone(member)
            scene.heal("abcdef"[number + 1 :])
        scene.ended()
        held(scene, "abcdef", 16)


def test_members_are_replaced_stopped_and_lost_while_others_recover(tmp_path: Path) -> None:
    with stage(tmp_path, MEMBER, "60", str(COUNT), "0.01", str(tmp_path), "ddp") as staged:
        scene = Scene(staged, tmp_path, "abc")
        scene.tell("c", "bucket-4-2")
        scene.tell("d", "micro-4-0")  # the replacement dies in its first micro-batch
        scene.gone("c")
        scene.heal("abd")
        scene.gone("d")
        scene.tell("a", "exchange-4")  # who hosts the store dies while all recover
        scene.heal("abe")
        scene.trained("abe", 8)
        scene.tell("e", "reduce-12", "SIGSTOP")  # frees nobody by itself
        scene.stopped("e")
        scene.heal("abf")
        scene.gone("a")
        scene.heal("bf")
        scene.trained("bf", 16)
        scene.heal("bfg", planned=True)
        scene.ended()
        held(scene, "abcdefg", 60)
        assert scene.lines("g")[-1]["world"] == 3
