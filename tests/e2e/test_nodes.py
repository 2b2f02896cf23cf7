"""Nodes that are to go, and nodes that come back, on a real Slurm."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from stage import LOCKSTEP, Stage, Training, until

pytestmark = pytest.mark.slurm

SETTLE_SECONDS = 12.0


def moves_off(training: Training, node: str, generation: int) -> None:
    training.goes_on(generation=generation)
    newest = training.newest()
    assert newest is not None
    assert node not in {s.node for s in training.of(newest.generation)}
    training.until("the node is given back", lambda: node not in training.nodes())
    assert training.heals()["kind"] == "announced departure"


def test_a_run_leaves_the_node_that_a_person_drains(stage: Stage) -> None:
    training = stage.training(LOCKSTEP, "--min-nodes=2")
    stage.scontrol("update", "NodeName=n3", "State=DRAIN", "Reason=fan is loud")
    moves_off(training, "n3", generation=2)
    until("it is empty", lambda: stage.node_states()["n3"] == "IDLE+DRAIN")
    assert stage.reason("n3") == "fan is loud"
    assert training.slurm("Restarts") == "0"


def test_a_run_that_needs_all_its_nodes_leaves_by_way_of_the_queue(stage: Stage) -> None:
    training = stage.training()
    stage.scontrol("update", "NodeName=n2", "State=DRAIN", "Reason=fan is loud")
    moves_off(training, "n2", generation=1001)


@pytest.fixture
def maintenance(stage: Stage) -> Iterator[None]:
    yield
    stage.lab.exec(["scontrol", "delete", "reservationname=fix"], check=False)


@pytest.mark.usefixtures("maintenance")
def test_a_run_leaves_before_a_maintenance_window_begins(stage: Stage) -> None:
    training = stage.training(LOCKSTEP, "--min-nodes=2")
    stage.scontrol(
        "create", "reservation", "reservationname=fix", "nodes=n2", "users=root",
        "starttime=now+4minutes", "duration=10", "flags=maint,ignore_jobs",
    )  # fmt: skip
    training.goes_on(generation=2, within_seconds=80)  # reservations are read once a minute
    moves_off(training, "n2", generation=2)


def test_a_lost_node_that_is_back_is_probed_and_used_again(stage: Stage) -> None:
    training = stage.training(LOCKSTEP, "--min-nodes=2")
    stage.lab.fault("cut-link", node="n3")
    training.goes_on(generation=2)
    training.until("n3 is down", lambda: "DOWN" in stage.node_states()["n3"], 80)
    stage.lab.fault("restore-link", node="n3")
    back = time.monotonic()
    until("n3 is used again", lambda: stage.node_states()["n3"] == "IDLE", 60 + 60)
    assert time.monotonic() - back > SETTLE_SECONDS
    assert stage.reason("n3") == ""
    assert training.state() == "RUNNING"
