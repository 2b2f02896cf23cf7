"""Ranks that are forked by the nodes' standby processes, on a real Slurm.

With -s each test prints how long it took: on a shared machine these are upper bounds.
"""

from __future__ import annotations

import json
import os

import pytest
from stage import NODES, Stage, Training

from lab import processes

pytestmark = pytest.mark.slurm
FORKED = "1 of 1 ranks are forked"
SMALL = "--batch=12 --layers=1 --dim=32 --sequence=32 --step-seconds=0.1 --steps=100000"
PLAIN = f"env GLOO_SOCKET_IFNAME=eth0 python /opt/unicron/examples/train_plain.py {SMALL} --log=log"
REGROUPS = PLAIN.replace("train_plain", "train_unicron")


def steps(training: Training) -> list[dict[str, float]]:
    path = training.folder / "log"
    found = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in found if line.endswith("}")]


def warm(stage: Stage, program: str, nodes: int) -> Training:
    """A run under way, with a standby process on each of its nodes."""
    training = stage.submit(program, nodes=nodes)
    training.until("train steps", lambda: len(steps(training)) > 10, within_seconds=120)
    training.until(
        "standby processes are warm",
        lambda: all("is warm" in training.agent_log(node) for node in NODES[:nodes]),
        within_seconds=180,
    )
    return training


def back(training: Training, rank: int) -> float:
    """Kills it; seconds until the first train step of the next generation."""
    at = training.stage.lab.fault("kill-rank", job=str(training.job), rank=rank).wall_seconds
    before = len(steps(training))
    training.until("it trains on", lambda: len(steps(training)) > before + 10)
    return min(line["time"] for line in steps(training) if line["generation"] == 2) - at


def ranks(stage: Stage) -> dict[str, int]:
    """Processes of users that lead their group and are a rank, by member."""
    found = {}
    for node in NODES:
        for process in stage.inside(node):
            member = stage.environment(process).get("UNICRON_MEMBER")
            if member and os.getpgid(process.pid) == process.pid:
                found[member] = process.pid
    return found


def test_an_unmodified_script_is_restarted_from_what_is_imported_already(stage: Stage) -> None:
    training = warm(stage, PLAIN, nodes=2)
    before = ranks(stage)
    seconds = back(training, 1)
    print(f"\nunmodified script, SIGKILL of one of two ranks: a train step after {seconds:.2f} s")
    assert FORKED in training.agent_log("n1") and FORKED in training.agent_log("n2")
    after = ranks(stage)
    assert len(after) == 2 and not before.keys() & after.keys()
    training.heals()
    training.stage.cancel_all()
    assert training.state() == "CANCELLED"
    for node in NODES[:2]:
        assert not [p for p in processes.living_in(processes.node_inits(stage.name)[node])
                    if p.name == "unicron-standby"]  # fmt: skip


def test_a_replacement_of_a_rank_is_forked(stage: Stage) -> None:
    training = warm(stage, REGROUPS, nodes=3)
    before = ranks(stage)
    seconds = back(training, 1)
    print(f"\nregrouping, SIGKILL of one of three ranks: a train step after {seconds:.2f} s")
    assert FORKED in training.agent_log("n2") and FORKED not in training.agent_log("n1")
    after = ranks(stage)
    assert len(after) == 3 and len(before.keys() & after.keys()) == 2
    assert {before[name] == after[name] for name in before.keys() & after.keys()} == {True}
