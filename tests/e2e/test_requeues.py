"""Runs that go through Slurm's queue: at once, at a size that fits, whoever put them there."""

from __future__ import annotations

import pytest
from stage import LOCKSTEP, Stage, Training, until

pytestmark = pytest.mark.slurm

GOAL_SECONDS = 10.0  # plain `scontrol requeue` holds the job for 120 s


def requeued_at(training: Training) -> float:
    return next(a["outcome_at"] for a in training.actions() if a["kind"] == "requeue")


def test_from_the_order_to_requeue_to_training_again(stage: Stage) -> None:
    training = stage.training()
    stage.lab.fault("cut-link", node="n3")
    training.goes_on(generation=1001)
    training.heals()
    again = min(s.time for s in training.steps() if s.generation > 1000)
    took = again - requeued_at(training)
    print(f"order to requeue -> training again: {took:.1f} s")
    assert took < GOAL_SECONDS, training.story()


def test_a_requeue_by_hand_is_the_same_run_and_does_not_wait(stage: Stage) -> None:
    training = stage.training()
    stage.scontrol("requeue", str(training.job))
    training.goes_on(generation=1001, within_seconds=30)
    assert training.heals()["kind"] == "requeued"
    assert training.run()["state"] == "running"
    assert min(s.step for s in training.of(1001)) > 5, "from the checkpoint"


def test_a_job_on_hold_waits_until_it_is_released(stage: Stage) -> None:
    training = stage.training()
    stage.scontrol("requeuehold", str(training.job))
    training.until("it waits", lambda: training.run().get("state") == "requeued")
    training.until("it is held", lambda: "held" in training.slurm("Reason").lower())
    assert "expedite" not in training.kinds()
    stage.scontrol("release", str(training.job))
    training.goes_on(generation=1001)


def test_a_run_too_small_to_go_on_comes_back_at_the_size_that_there_is_room_for(
    stage: Stage,
) -> None:
    training = stage.training(LOCKSTEP, "--min-nodes=3", nodes=4)
    others = [stage.submit(LOCKSTEP, nodes=1, user="bob") for _ in range(2)]
    for other in others:
        other.until_step(3)
    for node in ("n3", "n4"):
        stage.lab.fault("cut-link", node=node)
    training.until("it waits", lambda: training.run().get("state") == "requeued")
    others[0].finish()
    training.goes_on(generation=1001)
    assert {s.world for s in training.of(1001)} == {3}
    assert not {"n3", "n4"} & set(training.nodes())


def test_a_notice_that_nobody_handles_requeues_the_run_before_its_job_ends(stage: Stage) -> None:
    """As `--signal=USR1@120` before a time limit; scancel sends the same to the same processes."""
    training = stage.training()
    stage.lab.exec(["scancel", "--signal=USR1", str(training.job)], user="alice")
    training.goes_on(generation=1001, within_seconds=30)
    assert "SIGUSR1: the job ends soon" in training.output()


def test_a_program_that_handles_the_notice_is_left_to_requeue_itself(stage: Stage) -> None:
    program = "bash -c \"trap 'touch told-$RANK' USR1; touch here; while :; do sleep .2; done\""
    training = stage.submit(program, nodes=2)
    training.until("it runs", lambda: (training.folder / "here").exists())
    training.until("unicrond knows it", lambda: training.run().get("state") == "running")
    stage.lab.exec(["scancel", "--signal=USR1", str(training.job)], user="alice")
    told = [training.folder / f"told-{rank}" for rank in (0, 1)]
    training.until("its ranks are told", lambda: all(path.exists() for path in told))
    training.until("the user is told", lambda: "Unicron stands aside" in training.output())
    assert (training.state(), training.slurm("Restarts")) == ("RUNNING", "0")


def test_wishes_in_the_jobs_comment_count(stage: Stage) -> None:
    comment = '--comment={"unicron": {"min_nodes": 1, "weight": 3}}'
    training = stage.training(options=(comment,))
    run = training.run()
    assert (run["min_nodes"], run["max_nodes"], run["weight"]) == (1, 3, 3.0)


def test_tasks_of_an_array_are_runs_of_their_own_the_last_one_too(stage: Stage) -> None:
    """By the id of the last one Slurm means the whole array."""
    last = stage.submit(LOCKSTEP, "--ranks-per-node=1", nodes=2, options=("--array=1-2",))
    until("two runs", lambda: len(running(stage)) == 2)
    first = next(job for job in running(stage) if job != last.job)
    for job in (first, last.job):
        stage.lab.fault("kill-rank", job=str(job), rank=0)
        until("it heals", lambda j=job: running(stage).get(j, 0) >= 2)
    node = stage.api(f"runs/{last.job}")["nodes"][1]
    stage.lab.fault("cut-link", node=node)  # too few are left
    until("it is back", lambda: running(stage).get(last.job, 0) >= 1001, 60)
    assert running(stage)[first] == 2
    for job in (first, last.job):
        stage.lab.exec(["scancel", str(job)], user="alice")


def running(stage: Stage) -> dict[int, int]:
    """Generation by run."""
    items = stage.api("runs").get("items", [])
    return {item["run_id"]: item["generation"] for item in items if item["state"] == "running"}
