"""Slurm drains a node and says why: what broke is a failure of the node, a person's word is not."""

from __future__ import annotations

import pytest
from world import World, kinds, running

from unicrond.model.decision import ActionKind
from unicrond.model.run import RunState


def after_a_drain(reason: str, user: str) -> World:
    """Ten seconds after the drain of a node that a run trains on."""
    world = World()
    world.nodes(4)
    job = running(world, min_nodes=2)
    world.slurm.drain_by_person("n2", reason, user)
    world.pass_seconds(10)
    assert world.run(job).state is RunState.RUNNING
    return world


def nodes_of(world: World) -> tuple[str, ...]:
    (run,) = world.core.state.runs.values()
    assert run.assignment is not None
    return run.assignment.nodes


@pytest.mark.parametrize(
    ("reason", "user"),
    [
        ("gres/gpu count reported lower than configured (7 < 8)", "slurm"),
        (
            "NHC: check_gpu_ecc: GPU id 3: SRAM Uncorrectable ECC error count detected, (1,0)",
            "root",
        ),
    ],
)
def test_a_run_leaves_a_node_that_was_drained_for_broken_hardware(reason: str, user: str) -> None:
    world = after_a_drain(reason, user)
    assert "n2" not in nodes_of(world)
    assert ActionKind.DRAIN not in kinds(world)
    assert reason in "\n".join(entry.text for entry in world.store.journal)


@pytest.mark.parametrize(
    ("reason", "user"),
    [
        ("maintenance", "root"),
        ("gpu 3 has fallen off the bus, RMA 1234", "alice"),
        ("Low RealMemory", "slurm"),
    ],
)
def test_a_person_or_a_setting_that_took_the_node_is_no_failure_of_it(
    reason: str, user: str
) -> None:
    """It is left all the same, as a node that is to go (test_nodes.py)."""
    world = after_a_drain(reason, user)
    decided = "\n".join(e.text for e in world.store.journal if e.kind == "decision")
    assert f"n2 is drained by {user} ({reason})" in decided
    assert ActionKind.DRAIN not in kinds(world)
