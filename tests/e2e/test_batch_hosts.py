"""Three runs lose their batch host, which is rank 0's node too, at the same moment.

goes_on      may shrink; its node is plugged in half a minute after Slurm removed it
returns      may shrink; its node is plugged in at once after that, which fails a job of Slurm 22.05
starts_over  may not shrink, so it is requeued
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from stage import LOCKSTEP, Stage, Training, until

from lab import services

pytestmark = pytest.mark.slurm


@dataclass
class Story:
    stage: Stage
    goes_on: Training
    returns: Training
    starts_over: Training


@pytest.fixture(scope="module")
def story(raised_stage: Stage) -> Iterator[Story]:
    stage = raised_stage
    stage.make_whole()
    runs = (
        stage.submit(LOCKSTEP, "--min-nodes=1", nodes=2),
        stage.submit(LOCKSTEP, "--min-nodes=1", nodes=2),
        stage.submit(LOCKSTEP, nodes=2, user="bob"),
    )
    for training, nodes in zip(runs, (["n1", "n2"], ["n3", "n4"], ["n5", "n6"]), strict=True):
        training.until_step(6)
        until("unicrond knows it", lambda t=training: t.run().get("state") == "running")
        assert training.nodes() == nodes
    for node in ("n1", "n3", "n5"):
        stage.lab.fault("cut-link", node=node)
    yield Story(stage, *runs)
    stage.cancel_all()


def test_a_run_goes_on_without_its_batch_host_and_rank_0(story: Story) -> None:
    for training, left in ((story.goes_on, "n2"), (story.returns, "n4")):
        training.goes_on(generation=2)
        assert {s.node for s in training.of(2)} == {left}
        assert training.state() == "RUNNING"
        assert min(s.step for s in training.of(2)) > 5, "from the checkpoint"
    assert story.starts_over.generations() == [1], "it may not shrink"


def test_slurm_takes_the_nodes_and_the_runs_live_on(story: Story) -> None:
    for training, left in ((story.goes_on, ["n2"]), (story.returns, ["n4"])):
        training.until("Slurm takes its node", lambda t=training, n=left: t.nodes() == n, 90)
        assert training.state() == "RUNNING"
    story.stage.lab.fault("restore-link", node="n3")


def test_a_run_whose_batch_host_is_back_later_ends_completed(story: Story) -> None:
    training = story.goes_on
    time.sleep(15)
    story.stage.lab.fault("restore-link", node="n1")
    until("its old agent is refused", lambda: "Slurm took n1" in training.agent_log("n1"))
    training.goes_on()
    assert (training.state(), training.generations()) == ("RUNNING", [1, 2])
    training.finish()
    training.ends("COMPLETED")
    assert training.slurm("ExitCode") == "0:0"
    until("unicrond says so", lambda: training.run()["state"] == "completed")
    recorded = ["sacct", "--noheader", "-X", "-P", "--format=State", f"--jobs={training.job}"]
    shrunk = ["RESIZING", "COMPLETED"]  # a row for each size
    until("sacct too", lambda: story.stage.lab.exec(recorded).stdout.split() == shrunk)
    assert {s.node for s in training.of(2)} == {"n2"}, "nothing of its old ranks came back"
    until("its old agent is gone", lambda: not story.stage.processes_of_users("n1"))
    story.stage.return_to_service("n1")  # with n2, n4 and n6 room for the other two


def test_a_run_that_may_not_shrink_waits_for_slurm_and_starts_over(story: Story) -> None:
    training = story.starts_over
    training.goes_on(generation=1001)
    assert training.slurm("Restarts") == "1"
    assert {s.world for s in training.steps()} == {2}
    assert "n5" not in {s.node for s in training.of(1001)}


def test_a_run_whose_batch_host_is_back_early_is_healed_where_slurm_fails_its_job(
    story: Story,
) -> None:
    training = story.returns
    if services.slurm_version() >= (23, 2):
        training.goes_on()
        assert (training.state(), training.slurm("Restarts")) == ("RUNNING", "0")
        return
    until("it is requeued", lambda: training.slurm("Restarts") == "1")
    training.until_step(6, generation=1001)
    assert (
        "Slurm ended the job (failed) although no agent said that it was over" in training.story()
    )
    assert training.heals()["state"] == "resolved"
