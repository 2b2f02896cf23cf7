"""What only the simulated Slurm can be asked: older versions, exact times."""

from __future__ import annotations

import pytest

from unicrond.model.cluster import Allocation, JobState, NodeState
from unicrond.slurm.simulated import SimulatedSlurm


class HandClock:
    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at


class Story:
    """Four nodes; `after` lets time pass."""

    def __init__(self, early_return_fails: bool = False) -> None:
        self.clock = HandClock()
        self.slurm = SimulatedSlurm(self.clock, early_return_fails=early_return_fails)
        for number in range(1, 5):
            self.slurm.add_node(f"n{number}")

    def after(self, seconds: float) -> None:
        self.clock.at += seconds

    def job(self, job_id: int) -> Allocation:
        return (self.slurm.snapshot().allocations or {})[job_id]

    def state(self, node: str) -> NodeState:
        return (self.slurm.snapshot().nodes or {})[node].state


def test_a_cut_node_is_silent_before_it_is_down() -> None:
    story = Story()
    story.slurm.cut("n1")
    seen = []
    for _ in range(3):
        story.after(19)
        seen.append(story.state("n1"))
    assert seen == [NodeState.UP, NodeState.UNKNOWN, NodeState.DOWN]


def test_a_cut_shorter_than_the_time_out_goes_unnoticed() -> None:
    story = Story()
    story.slurm.cut("n1")
    story.after(39)
    story.slurm.restore("n1")
    story.after(100)
    assert story.state("n1") is NodeState.UP


def test_a_second_cut_waits_its_own_time_out() -> None:
    story = Story()
    story.slurm.cut("n1")
    story.after(30)
    story.slurm.restore("n1")
    story.slurm.cut("n1")
    story.after(30)
    assert story.state("n1") is not NodeState.DOWN
    story.after(10)
    assert story.state("n1") is NodeState.DOWN


@pytest.mark.parametrize(
    ("early_return_fails", "back_after", "state"),
    [(True, 5, JobState.FAILED), (True, 30, JobState.RUNNING), (False, 5, JobState.RUNNING)],
)
def test_a_batch_host_that_is_back_early_fails_the_job_on_old_slurm(
    early_return_fails: bool, back_after: float, state: JobState
) -> None:
    story = Story(early_return_fails)
    job_id = story.slurm.submit(2)
    story.slurm.cut("n1")
    story.after(40)
    assert story.job(job_id).nodes == ("n2",)
    story.after(back_after)
    story.slurm.restore("n1")
    assert story.job(job_id).state is state


def test_a_failed_job_can_be_requeued() -> None:
    story = Story()
    job_id = story.slurm.submit(2)
    story.slurm.end(job_id, exit_code=1)
    story.slurm.requeue(job_id, restarts=0)
    story.after(1)
    story.slurm.snapshot()
    story.after(120)
    assert (story.job(job_id).state, story.job(job_id).restarts) == (JobState.RUNNING, 1)


def test_a_requeued_job_starts_by_itself_after_its_begin_time() -> None:
    story = Story()
    job_id = story.slurm.submit(2)
    story.slurm.requeue(job_id, restarts=0)
    story.after(1)
    assert story.job(job_id).state is JobState.PENDING
    story.after(119)
    assert story.job(job_id).state is JobState.PENDING
    story.after(1)
    assert story.job(job_id).state is JobState.RUNNING


def test_the_last_node_lost_requeues_or_ends_the_job() -> None:
    story = Story()
    kept, ended = story.slurm.submit(1), story.slurm.submit(1, requeues=False)
    story.slurm.cut("n1")
    story.slurm.cut("n2")
    story.after(40)
    assert (story.job(kept).restarts, story.job(kept).state) == (1, JobState.COMPLETING)
    assert story.job(ended).state is JobState.NODE_FAIL


def test_a_requeue_with_a_cut_node_completes_only_when_slurm_gave_the_node_up() -> None:
    story = Story()
    job_id = story.slurm.submit(2)
    story.slurm.cut("n1")
    story.slurm.requeue(job_id, restarts=0)
    story.after(39)
    assert story.job(job_id).state is JobState.COMPLETING
    story.after(2)
    assert story.job(job_id).state is JobState.PENDING


def test_nodes_given_back_go_to_the_head_of_the_queue() -> None:
    story = Story()
    first = story.slurm.submit(4)
    second = story.slurm.submit(2)
    assert story.job(second).state is JobState.PENDING
    story.slurm.shrink(first, ["n1", "n2"])
    assert story.job(second).nodes == ("n3", "n4")


def test_no_node_is_in_two_whole_jobs_and_none_starts_on_a_drained_one() -> None:
    story = Story()
    story.slurm.drain("n1", "unicron: test incident=1")
    jobs = [story.slurm.submit(1) for _ in range(5)]
    used = [node for job_id in jobs for node in story.job(job_id).nodes]
    assert used == ["n2", "n3", "n4"]


def test_while_slurmctld_is_down_no_node_falls_and_later_it_waits_anew() -> None:
    story = Story()
    job_id = story.slurm.submit(2)
    story.slurm.stop_controller()
    story.slurm.cut("n2")
    story.after(300)
    assert story.slurm.snapshot().nodes is None
    story.slurm.start_controller()
    assert story.job(job_id).nodes == ("n1", "n2")
    story.after(40)
    assert story.job(job_id).nodes == ("n1",)


def test_an_ended_job_is_forgotten_after_a_while() -> None:
    story = Story()
    job_id = story.slurm.submit(1)
    story.slurm.end(job_id)
    assert story.job(job_id).state is JobState.COMPLETED
    story.after(300)
    assert story.slurm.snapshot().allocations == {}
