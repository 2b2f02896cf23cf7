"""Real training that is slow, learns nothing or hurts itself: what a person is told of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from stage import Stage, Training, until

pytestmark = pytest.mark.slurm

REHEARSE = "python /opt/unicron/examples/rehearse.py"
LEARNT_STEPS = 80  # after which its speed is known
PATIENCE_SECONDS = 120.0


@pytest.fixture
def training(stage: Stage) -> Iterator[Training]:
    training = stage.submit(REHEARSE)
    training.until_step(6, within_seconds=PATIENCE_SECONDS)
    until("unicrond sees it running", lambda: training.run().get("state") == "running")
    yield training


def strike(training: Training, kind: str, rank: int, **how: Any) -> None:
    training.stage.lab.fault(kind, job=str(training.job), rank=rank, **how)


def told(training: Training, kind: str) -> dict[str, Any]:
    def seen() -> dict[str, Any] | None:
        return next((i for i in training.observed() if i["kind"] == kind), None)

    found: dict[str, Any] = training.until(f"{kind} is told", seen, PATIENCE_SECONDS)
    return found


def test_a_slow_rank_is_named_and_the_run_goes_on(training: Training) -> None:
    training.until_step(LEARNT_STEPS, within_seconds=PATIENCE_SECONDS)
    strike(training, "straggler", 1, percent=60)
    incident = told(training, "straggler")
    assert (incident["root_rank"], incident["root_node"], incident["severity"]) == (1, "n2", "NONE")
    training.goes_on()
    training.stage.lab.fault("mend-ranks", node="n2")
    training.until("it is well again", lambda: told(training, "straggler")["state"] == "resolved")
    assert training.generations() == [1]
    assert training.incidents() == []
    assert "rank 1 on n2 takes" in training.story()


def test_a_loss_that_is_nan_is_told_and_nothing_is_done(training: Training) -> None:
    strike(training, "nan", 2)
    incident = told(training, "NaN/loss spike")
    assert (incident["root_rank"], incident["severity"]) == (2, "NONE")
    training.goes_on()
    assert training.generations() == [1]
    assert training.incidents() == []


def test_a_rank_that_is_told_to_fail_does_and_its_run_restarts(training: Training) -> None:
    strike(training, "exception", 1)
    training.goes_on(generation=2, within_seconds=PATIENCE_SECONDS)
    assert "the lab told this rank to fail" in training.story()


def test_a_rank_that_is_told_to_hang_is_suspected(training: Training) -> None:
    training.until_step(20)
    strike(training, "hang", 1)
    training.until("its agent says so", lambda: "kind=slow" in training.agent_log("n2"))
    before = training.newest()
    assert training.newest() == before, "and nobody goes on without it"


def test_a_disk_that_is_full_fails_the_checkpoint(training: Training) -> None:
    training.until_step(12)
    folder = f"/home/alice/{training.folder.name}/checkpoints"
    training.stage.lab.fault("disk-full", node="n1", folder=folder)
    try:
        training.until("it is told", lambda: "No space left" in training.story(), PATIENCE_SECONDS)
    finally:
        training.stage.cancel_all()
        training.stage.lab.fault("mend-disk", node="n1", folder=folder)
