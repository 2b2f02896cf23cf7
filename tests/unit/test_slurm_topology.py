"""Switches of nodes, as several versions of Slurm tell them."""

from __future__ import annotations

from pathlib import Path

import pytest

from unicrond.errors import SlurmUnavailable
from unicrond.model.cluster import Node, NodeState
from unicrond.slurm.topology import (
    AGAIN_AFTER_TROUBLE_SECONDS,
    AGAIN_SECONDS,
    Topology,
    parse_topology,
)

RECORDED = Path(__file__).parent.parent / "data/slurm/22.05/topology.txt"
NODES = {name: Node(name, NodeState.UP, "IDLE") for name in ("n1", "n2", "n3")}


def test_a_node_hangs_on_its_switch_of_the_lowest_level() -> None:
    told = {"n1": "s1", "n2": "s1", "n3": "s2", "n4": "s2"}
    assert parse_topology(RECORDED.read_text()) == (told, "")


@pytest.mark.parametrize(
    ("text", "switches"),
    [
        ("", {}),  # topology/flat, topology/none
        ("SwitchName=s1 Level=0 LinkSpeed=1\n", {}),  # a switch without nodes
        ("SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-2] Switches=s1\n", {}),
        ("BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\n", {"n1": "b1", "n2": "b1"}),
        ("AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4\n", {}),
        (  # two topologies: the first that names a node counts
            "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n1\nBlockName=b1 BlockIndex=0 Nodes=n[1-2]\n",
            {"n1": "s1", "n2": "b1"},
        ),
    ],
)
def test_every_form_of_a_topology_is_read(text: str, switches: dict[str, str]) -> None:
    assert parse_topology(text) == (switches, "")


def test_a_line_that_was_cut_off_leaves_its_own_nodes_unknown() -> None:
    cut = "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-\nSwitchName=s2 Level=0 Nodes=n3\n"
    switches, trouble = parse_topology(cut)
    assert switches == {"n3": "s2"}
    assert trouble.startswith("switch s1: not a hostlist")


class Controller:
    """Answers, or not; counts how often it was asked."""

    def __init__(self) -> None:
        self.text, self.asked, self.away = RECORDED.read_text(), 0, False

    def show(self) -> str:
        self.asked += 1
        if self.away:
            raise SlurmUnavailable("no answer")
        return self.text


def test_it_is_asked_for_once_an_hour_and_not_at_each_look() -> None:
    slurm = Controller()
    topology = Topology(slurm.show)
    for at in (100.0, 102.0, 100.0 + AGAIN_SECONDS - 1):
        placed, trouble = topology.placed(NODES, at)
        assert [node.switch for node in placed.values()] == ["s1", "s1", "s2"]
        assert not trouble
    assert slurm.asked == 1
    slurm.text = ""
    placed, _ = topology.placed(NODES, 100.0 + AGAIN_SECONDS)
    assert {node.switch for node in placed.values()} == {""}


def test_what_was_read_stays_while_slurm_does_not_answer() -> None:
    slurm = Controller()
    topology = Topology(slurm.show)
    topology.placed(NODES, 0.0)
    slurm.away = True
    placed, trouble = topology.placed(NODES, AGAIN_SECONDS)
    assert placed["n3"].switch == "s2"
    assert trouble == "switches of nodes are not known: no answer"
    slurm.away = False
    assert topology.placed(NODES, AGAIN_SECONDS + AGAIN_AFTER_TROUBLE_SECONDS)[1] == ""


def test_a_node_that_no_switch_names_stays_unknown() -> None:
    placed, _ = Topology(Controller().show).placed({"n9": Node("n9", NodeState.UP, "IDLE")}, 0.0)
    assert placed["n9"].switch == ""
