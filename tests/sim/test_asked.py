"""Nodes that a person asks to be drained, or given back."""

from __future__ import annotations

import pytest
from world import World, running

from unicrond.core.asked import ASKED
from unicrond.model.cluster import NodeState
from unicrond.model.decision import Mode
from unicrond.model.events import ModeSet, NodeAsked


@pytest.fixture
def world() -> World:
    world = World()
    world.nodes(6)
    return world


def ask(world: World, node: str, drain: bool) -> None:
    world.tell(NodeAsked(world.clock.at, node, drain, "ada (new memory)"))
    world.pass_seconds(10)


def test_a_node_is_drained_and_given_back_also_where_unicrond_only_observes(world: World) -> None:
    job = running(world)
    world.tell(ModeSet(world.clock.at, Mode.OBSERVE, "ada"))
    ask(world, "n2", drain=True)
    node = world.slurm.snapshot().nodes["n2"]
    assert node.state is NodeState.DRAINED
    assert node.reason.startswith("unicron: ada (new memory) asks to drain n2 incident=")
    assert world.run(job).generation == 1
    assert [i for i in world.core.state.incidents.values() if i.kind == ASKED] == []
    ask(world, "n2", drain=False)
    assert world.slurm.snapshot().nodes["n2"].state is NodeState.UP


def test_a_node_that_a_person_drained_is_left_alone(world: World) -> None:
    running(world)
    world.slurm.drain_by_person("n5", "bad fan")
    ask(world, "n5", drain=True)
    ask(world, "n5", drain=False)
    assert world.slurm.snapshot().nodes["n5"].reason == "bad fan"


def test_a_node_that_slurm_does_not_list_is_told_of(world: World) -> None:
    running(world)
    ask(world, "n99", drain=True)
    assert any("Slurm does not list it" in line.text for line in world.store.journal)
