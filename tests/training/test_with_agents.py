"""The example under real agents: what a run that imports unicron loses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from agentworld import Job, Orders, until
from stagehand import ROOT, free_port

from unicrond.agent import copies

pytestmark = pytest.mark.training
SMALL = ("--layers", "1", "--dim", "16", "--heads", "2", "--batch", "6", "--sequence", "16")


def example(folder: Path, steps: int) -> list[str]:
    return [
        "env", "GLOO_SOCKET_IFNAME=lo", sys.executable, str(ROOT / "examples/train_unicron.py"),
        *SMALL, "--log-all-ranks", "--steps", str(steps), "--step-seconds", "0.05",
        "--checkpoint-dir", str(folder / "disk"), "--checkpoint-every", "100000",
    ]  # fmt: skip


def trained(job: Job, generation: int, rank: int) -> list[dict[str, Any]]:
    """What the rank that was started in this generation wrote, also in later ones."""
    lines = job.output(generation, rank).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def test_new_processes_go_on_from_memory_and_the_end_of_the_run_frees_it(tmp_path: Path) -> None:
    with Job(tmp_path, 2, example(tmp_path, 60)) as job:
        folders = [copies.folder_of(job.run_id, node) for node in ("n1", "n2")]
        until(lambda: len(trained(job, 1, 0)) > 5)
        assert all(folder.is_dir() for folder in folders)
        job.kill_rank("n2")
        assert job.exit_codes() == [0, 0]
        before = [line["step"] for rank in (0, 1) for line in trained(job, 1, rank)]
        after = [line["step"] for line in trained(job, 2, 0)]
        assert after[0] in (max(before), max(before) + 1)
        assert after[-1] == 60
        assert not any(folder.exists() for folder in folders)
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["step-0000000060.unicron"]


def start(generation: int, *slots: tuple[int, str, str, int]) -> dict[str, object]:
    named = [list(slot) for slot in slots]
    assignment = {"generation": generation, "order": f"o{generation}", "slots": named}
    return {"assignment": assignment, "master_node": "n1", "master_port": free_port()}


def test_a_kept_rank_trains_on_in_its_process_with_a_new_peer(tmp_path: Path) -> None:
    first = start(1, (0, "o1.0", "n1", 0), (1, "o1.1", "n2", 0))
    second = start(2, (0, "o2.0", "n2", 0), (1, "o1.0", "n1", 0))
    with Orders(tmp_path, 3, example(tmp_path, 100_000), unattended=60.0) as job:
        job.give(("n1", "start_ranks", first), ("n2", "start_ranks", first))
        until(lambda: len(trained(job, 1, 0)) > 5)
        kept = job.ranks("n1")
        job.kill_rank("n2")
        given = job.give(("n1", "start_ranks", second), ("n2", "start_ranks", second))
        assert [body["state"] for body in given] == ["done", "done"]
        until(lambda: trained(job, 1, 0)[-1]["generation"] == 2)
        lines = trained(job, 1, 0)
        old = [line["step"] for line in lines if line["generation"] == 1]
        new = [line for line in lines if line["generation"] == 2]
        assert (new[0]["rank"], new[0]["world_size"]) == (1, 2)
        assert new[0]["step"] in (old[-1], old[-1] + 1)
        assert job.ranks("n1") == kept
    for node in ("n1", "n2"):
        copies.remove(job.run_id, node)
