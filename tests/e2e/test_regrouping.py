"""A run that regroups, on a real Slurm: survivors keep their processes and their train step.

With -s each test prints when training was back: on a shared machine these are upper bounds.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from stage import NODES, Stage, Training

from lab import processes

pytestmark = pytest.mark.slurm

EXAMPLE = (
    "env GLOO_SOCKET_IFNAME=eth0 python /opt/unicron/examples/train_unicron.py --steps=100000"
    " --step-seconds=0.1 --checkpoint-every=100000 --batch=12 --layers=1 --dim=32 --sequence=32"
    " --log=losses.jsonl --log-all-ranks"
)
Line = dict[str, Any]


def lines(training: Training) -> list[Line]:
    path = training.folder / "losses.jsonl"
    found = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in found if line.startswith("{") and line.endswith("}")]


def of(training: Training, generation: int) -> list[Line]:
    return [line for line in lines(training) if line["generation"] == generation]


def members(stage: Stage) -> dict[str, tuple[str, int]]:
    """Node and process of each rank, by member."""
    found = {}
    for node in NODES:
        for process in stage.inside(node) if processes.node_inits(stage.name).get(node) else []:
            member = stage.environment(process).get("UNICRON_MEMBER")
            if member and os.getpgid(process.pid) == process.pid:
                found[member] = (node, process.pid)
    return found


def regrouping(stage: Stage, *wishes: str, **options: Any) -> Training:
    """Under way, and unicrond knows that every rank takes orders."""
    training = stage.submit(EXAMPLE, *wishes, **options)
    training.until("train steps", lambda: len(lines(training)) > 30, within_seconds=120)
    ranks = {line["rank"] for line in lines(training)}

    def known() -> bool:
        agents = training.run().get("agents", [])
        return {rank for agent in agents for rank in agent["regrouping"]} == ranks

    training.until("unicrond knows that all ranks regroup", known)
    return training


def back(training: Training, world: int, at: float, what: str, generation: int = 2) -> None:
    """Training goes on in this generation with so many ranks, and no train step was lost."""
    training.until(
        f"{what}: generation {generation} trains on",
        lambda: {line["rank"] for line in of(training, generation)} == set(range(world)),
        within_seconds=120,
    )
    old, new = of(training, generation - 1), of(training, generation)
    first, last = min(line["step"] for line in new), max(line["step"] for line in old)
    assert last <= first <= last + 1, "nothing complete is lost, nothing is left out"
    assert {line["world_size"] for line in new} == {world}
    seconds = min(line["time"] for line in new) - at
    print(f"\n{what}: a train step after {seconds:.2f} s, {last + 1 - first} of one done twice")


def killed(training: Training, rank: int) -> float:
    return training.stage.lab.fault("kill-rank", job=str(training.job), rank=rank).wall_seconds


def test_survivors_of_a_killed_rank_keep_their_processes_and_train_on_from_memory(
    stage: Stage,
) -> None:
    training = regrouping(stage, ranks_per_node=2)
    before = members(stage)
    assert len(before) == 6
    back(training, 6, killed(training, 3), "SIGKILL of one of six ranks, replaced")
    after = members(stage)
    kept = {name: place for name, place in after.items() if name in before}
    assert len(after) == 6 and len(kept) == 5
    assert kept == {name: before[name] for name in kept}, "the same processes"
    assert training.heals()["severity"] == "SEV2"
    assert training.kinds() == {"hold_ranks", "start_ranks"}
    assert "5 of 6 ranks keep their processes; regrouping" in training.story()
    assert stage.reasons() == {}


def test_where_it_may_shrink_the_others_train_on_at_once_and_the_node_follows(
    stage: Stage,
) -> None:
    training = regrouping(stage, "--min-nodes=2", ranks_per_node=2)
    before = members(stage)
    back(training, 4, killed(training, 3), "SIGKILL of one of six ranks, four go on")
    training.until("the node is back in", lambda: of(training, 3), within_seconds=120)
    left = max(line["time"] for line in of(training, 2))
    back(training, 6, left, "its node joins, counted from the last train step without it", 3)
    after = members(stage)
    kept = {name: place for name, place in after.items() if name in before}
    assert (len(after), len(kept)) == (6, 4)
    assert kept == {name: before[name] for name in kept}, "the same processes"
    training.heals()
    assert training.kinds() == {"hold_ranks", "stop_ranks", "prepare_ranks", "start_ranks"}
    assert "n2 to follow once new ranks are prepared there" in training.story()


def test_survivors_of_a_lost_node_keep_their_processes_and_train_on_without_it(
    stage: Stage,
) -> None:
    training = regrouping(stage, "--min-nodes=2", ranks_per_node=1)
    before = members(stage)
    lost = training.nodes()[1]
    off = stage.lab.fault("power-off", node=lost).wall_seconds
    back(training, 2, off, "power-off of one of three nodes")
    after = members(stage)
    assert after == {name: place for name, place in before.items() if place[0] != lost}
    training.until("Slurm's node is drained", lambda: "DRAIN" in stage.node_states()[lost])
    assert training.heals()["severity"] == "SEV1"
    assert "2 of 3 ranks keep their processes; shrinking" in training.story()


def test_a_dead_agent_is_replaced_while_the_other_ranks_wait_for_it(stage: Stage) -> None:
    training = regrouping(stage, ranks_per_node=1)
    before = members(stage)
    lost = training.nodes()[2]
    hit = stage.lab.fault("kill-agent", node=lost, job=str(training.job))
    back(training, 3, hit.wall_seconds, "SIGKILL of an agent")
    after = members(stage)
    assert {name for name in before if name in after} == {
        name for name, (node, _) in before.items() if node != lost
    }
    training.heals()


def test_a_halted_rank_is_replaced_and_those_that_waited_for_it_keep_their_processes(
    stage: Stage,
) -> None:
    training = regrouping(stage, ranks_per_node=2)
    before = members(stage)
    halted = stage.lab.fault("stop-rank", job=str(training.job), rank=2)
    back(training, 6, halted.wall_seconds, "SIGSTOP of one of six ranks, replaced")
    after = members(stage)
    kept = {name: place for name, place in after.items() if name in before}
    assert len(after) == 6 and len(kept) == 5
    assert kept == {name: before[name] for name in kept}, "the same processes"
    assert training.heals()["kind"] == "task hang"


def test_a_node_that_is_cut_off_for_less_than_its_lease_loses_no_process(stage: Stage) -> None:
    training = regrouping(stage, "--min-nodes=2", ranks_per_node=1)
    before = members(stage)
    cut = stage.lab.fault("cut-link", node=training.nodes()[1]).wall_seconds
    training.until("its loss is noticed", training.incidents)
    stage.lab.fault("restore-link", node=training.nodes()[1])
    back(training, 3, cut, "a link that is cut for a few seconds")
    assert members(stage) == before
    training.heals()


def test_unicrond_killed_while_survivors_wait_goes_on_with_it(stage: Stage) -> None:
    training = regrouping(stage, "--min-nodes=2", ranks_per_node=1)
    before = members(stage)
    lost = training.nodes()[2]
    off = stage.lab.fault("power-off", node=lost).wall_seconds
    training.until("ranks are held", lambda: "hold_ranks" in training.kinds())
    stage.lab.fault("kill-unicrond")
    back(training, 2, off, "power-off, and SIGKILL of unicrond while the lease runs out")
    assert members(stage) == {name: place for name, place in before.items() if place[0] != lost}
    training.heals()


def test_where_it_may_shrink_nobody_waits_for_the_ranks_of_a_dead_agent(stage: Stage) -> None:
    training = regrouping(stage, "--min-nodes=2", ranks_per_node=1)
    lost = training.nodes()[2]
    hit = stage.lab.fault("kill-agent", node=lost, job=str(training.job)).wall_seconds
    back(training, 2, hit, "SIGKILL of an agent, the two others go on")
    training.until("the node is back in", lambda: of(training, 3), within_seconds=120)
    left = max(line["time"] for line in of(training, 2))
    back(training, 3, left, "its node joins, counted from the last train step without it", 3)
    training.heals()
