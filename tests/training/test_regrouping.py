"""The example with `import unicron`, in real processes: it goes on after losses, from memory."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stagehand import ROOT, Stage, stage

pytestmark = pytest.mark.training
GENERATIONS = 9
SMALL = ("--layers", "1", "--dim", "16", "--heads", "2", "--batch", "6", "--sequence", "16")


def example(folder: Path, steps: int, seconds: float) -> list[str]:
    return [
        str(ROOT / "examples/train_unicron.py"), *SMALL, "--log-all-ranks", "--steps", str(steps),
        "--step-seconds", str(seconds), "--checkpoint-dir", str(folder / "disk"),
    ]  # fmt: skip


def losses(*lines: list[dict[str, Any]]) -> dict[int, float]:
    return {line["step"]: line["loss"] for rank in lines for line in rank}


def in_generation(
    scene: Stage, member: str, generation: int, at_least: int
) -> list[dict[str, Any]]:
    def found() -> list[dict[str, Any]]:
        lines = [line for line in scene.lines(member) if line["generation"] == generation]
        return lines if len(lines) >= at_least else []

    result: list[dict[str, Any]] = scene.until(found, f"{member} in generation {generation}")
    return result


def test_survivors_go_on_in_their_processes_from_the_last_train_step(tmp_path: Path) -> None:
    with stage(tmp_path, *example(tmp_path, 1000, 0.05)) as scene:
        scene.begin(1, ("a", "n1"), ("b", "n1"), ("c", "n2"))
        in_generation(scene, "a", 1, at_least=5)
        pids = {name: scene.ranks[name].pid for name in "bc"}

        scene.kill("a")  # rank 0: it has hosted the store, and written n1's memory
        scene.stay()
        scene.begin(2, ("b", "n1"), ("c", "n2"))
        second = in_generation(scene, "b", 2, at_least=3)
        assert {name: scene.ranks[name].pid for name in "bc"} == pids
        assert (second[0]["rank"], second[0]["world_size"]) == (0, 2)
        done = [one for name in "abc" for one in scene.lines(name) if one["generation"] == 1]
        last = max(losses(done))
        assert second[0]["step"] in (last, last + 1), "at most the failed train step again"

        scene.kill("c", signal.SIGSTOP)  # frees nobody by itself
        scene.stay()
        scene.begin(3, ("b", "n1"), ("d", "n3"))  # `d` is new and holds nothing
        third = in_generation(scene, "d", 3, at_least=3)
        assert third[0]["step"] > second[0]["step"]
        got, begin = losses(*(scene.lines(name) for name in "abcd")), third[-1]["step"]
    (tmp_path / "whole").mkdir()
    with stage(tmp_path / "whole", *example(tmp_path / "whole", begin, 0)) as scene:
        scene.begin(1, ("a", "n1"))
        scene.until(lambda: not scene.runs("a"), "the run without failures")
        assert scene.ranks["a"].returncode == 0
        assert losses(scene.lines("a")) == pytest.approx(
            {k: got[k] for k in range(1, begin + 1)}, rel=1e-4
        )


def test_outside_a_run_it_trains_alone_and_under_torchrun(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UNICRON")}
    environment |= {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for steps, launcher in ((3, []), (6, torchrun)):
        command = [sys.executable, *launcher, *example(tmp_path, steps, 0)]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        found = re.findall(r"\{[^{}]*\}", done.stdout)  # two ranks may share a line
        lines = [json.loads(line) for line in found]
        assert {line["step"] for line in lines} == set(range(steps - 2, steps + 1))
        assert {line["world_size"] for line in lines} == {2 if launcher else 1}


def test_many_generations_in_one_process_leak_nothing(tmp_path: Path) -> None:
    def of(member: str, kind: str) -> int:
        return sum(1 for _ in Path(f"/proc/{scene.ranks[member].pid}/{kind}").iterdir())

    with stage(tmp_path, *example(tmp_path, 10_000, 0.01)) as scene:
        counts = []
        for generation in range(1, GENERATIONS + 1):
            scene.begin(generation, ("a", "n1"), ("b", "n2"))
            in_generation(scene, "a", generation, at_least=2)
            in_generation(scene, "b", generation, at_least=2)
            counts.append([of(member, kind) for member in "ab" for kind in ("task", "fd")])
        said = scene.output("a").read_text()
    grown = [last - early for early, last in zip(counts[2], counts[-1], strict=True)]
    assert max(grown) <= 2, counts  # one that copies may be there or not
    steps = [line["step"] for line in scene.lines("a")]
    assert len(steps) - len(set(steps)) <= GENERATIONS, "at most one train step is done again"
    assert "goes on in generation 2" in said
