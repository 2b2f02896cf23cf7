"""What every Slurm promises of jobs that are requeued, and of what is written into them."""

from __future__ import annotations

import pytest
from slurmworld import (
    NODES,
    OURS,
    World,
    await_job,
    await_node,
    job_in,
    running,
    until,
    without_batch_host,
)

from unicrond.errors import Refused, SlurmUnavailable
from unicrond.model.cluster import JobState, NodeState


def test_a_requeue_counts_once_and_waits_for_its_begin_time(world: World) -> None:
    job = running(world, 2)
    world.slurm.requeue(job.job_id, restarts=0)
    world.slurm.requeue(job.job_id, restarts=0)
    waiting = await_job(world, job.job_id, JobState.PENDING)
    world.slurm.requeue(job.job_id, restarts=0)
    world.slurm.requeue(job.job_id, restarts=1)
    assert (waiting.restarts, waiting.nodes) == (1, ())
    world.wait(5)
    assert job_in(world.slurm.snapshot(), job.job_id).state is JobState.PENDING


def test_an_expedited_job_starts_at_its_size_without_the_excluded_nodes(world: World) -> None:
    job = running(world, 2)
    world.slurm.requeue(job.job_id, restarts=0)
    await_job(world, job.job_id, JobState.PENDING)
    world.slurm.expedite(job.job_id, [job.batch_host])
    again = await_job(world, job.job_id, JobState.RUNNING)
    assert len(again.nodes) == 2
    assert job.batch_host not in again.nodes
    assert again.restarts == 1


def test_what_was_excluded_for_one_start_is_free_for_the_next(world: World) -> None:
    job = running(world, len(NODES) - 1)
    for restart, exclude in enumerate(([job.batch_host], [])):
        world.slurm.requeue(job.job_id, restarts=restart)
        await_job(world, job.job_id, JobState.PENDING)
        world.slurm.expedite(job.job_id, exclude, len(NODES) - (not restart))
        job = await_job(world, job.job_id, JobState.RUNNING)
    assert set(job.nodes) == set(NODES)


def test_a_verdict_is_told_in_the_job(world: World) -> None:
    job = running(world, 1)
    world.slurm.tell(job.job_id, "restart: rank 3 on n2 ended")
    world.slurm.tell(job.job_id, 'restart: it said "JobState=FAILED"')
    assert job_in(world.slurm.snapshot(), job.job_id).state is JobState.RUNNING
    world.admin_says(job.job_id, "watch this one")
    with pytest.raises(Refused, match="somebody else's words"):
        world.slurm.tell(job.job_id, "restart")


@pytest.mark.parametrize("kept", [True, False])
def test_nodes_are_kept_for_a_requeued_job_or_go_to_who_waits(world: World, kept: bool) -> None:
    job = running(world, 3)
    other = world.submit(3, user="bob")
    if kept:
        world.slurm.reserve(job.job_id, "alice", job.nodes)
        world.slurm.reserve(job.job_id, "alice", job.nodes)
    world.slurm.requeue(job.job_id, restarts=0)
    await_job(world, job.job_id, JobState.PENDING)
    if kept:
        world.wait(5)
        assert job_in(world.slurm.snapshot(), other).state is JobState.PENDING
        world.slurm.expedite(job.job_id, [])
        assert await_job(world, job.job_id, JobState.RUNNING).nodes == job.nodes
    else:
        await_job(world, other, JobState.RUNNING)
        world.cancel(job.job_id)


@pytest.mark.parametrize("nodes", [1, 3])
def test_an_expedited_job_starts_at_another_size(world: World, nodes: int) -> None:
    job = running(world, 2)
    world.slurm.requeue(job.job_id, restarts=0)
    await_job(world, job.job_id, JobState.PENDING)
    world.slurm.expedite(job.job_id, [], nodes)
    again = await_job(world, job.job_id, JobState.RUNNING)
    assert (len(again.nodes), again.gpus) == (nodes, 8 * nodes)


def test_a_job_that_its_user_holds_is_not_expedited(world: World) -> None:
    job = running(world, 1)
    world.slurm.requeue(job.job_id, restarts=0)
    await_job(world, job.job_id, JobState.PENDING)
    world.hold(job.job_id)
    with pytest.raises(Refused, match="on hold"):
        world.slurm.expedite(job.job_id, [])


def test_a_running_job_is_not_expedited(world: World) -> None:
    job = running(world, 1)
    with pytest.raises(Refused, match="not pending yet"):
        world.slurm.expedite(job.job_id, [])


def test_a_job_that_its_owner_cancelled_stays_cancelled(world: World) -> None:
    job = running(world, 1)
    world.cancel(job.job_id)
    await_job(world, job.job_id, JobState.CANCELLED)
    with pytest.raises(Refused, match="cancelled"):
        world.slurm.requeue(job.job_id, restarts=0)


def test_a_job_that_is_being_cancelled_is_not_brought_back(world: World) -> None:
    job = running(world, 1)
    world.cancel(job.job_id)
    with pytest.raises((Refused, SlurmUnavailable), match=r"completing|cancelled"):
        world.slurm.requeue(job.job_id, restarts=0)
    assert await_job(world, job.job_id, JobState.CANCELLED).restarts == 0


def test_without_no_kill_a_lost_node_requeues_the_job(world: World) -> None:
    job_id = world.submit(2, no_kill=False)
    job = await_job(world, job_id, JobState.RUNNING)
    world.cut(job.nodes[1])
    until(world, lambda seen: job_in(seen, job_id).restarts == 1, 70)
    world.restore(job.nodes[1])
    await_node(world, job.nodes[1], NodeState.UP, 60)


def test_a_job_survives_its_batch_host_and_heals_by_requeue(world: World) -> None:
    job = running(world, 2)
    lost, survivors = job.batch_host, tuple(without_batch_host(job))
    world.cut(lost)
    world.slurm.drain(lost, OURS)
    await_node(world, lost, NodeState.DOWN, 70)
    left = job_in(world.slurm.snapshot(), job.job_id)
    assert (left.state, left.nodes, left.batch_host) == (JobState.RUNNING, survivors, lost)
    world.slurm.shrink(job.job_id, survivors)
    world.slurm.requeue(job.job_id, restarts=0)
    await_job(world, job.job_id, JobState.PENDING, 60)
    world.slurm.expedite(job.job_id, [lost])
    assert lost not in await_job(world, job.job_id, JobState.RUNNING).nodes
    world.restore(lost)
    world.wait(5)  # Slurm seldom asks a drained node whether it is back; drained it stays
    assert "DRAIN" in (world.slurm.snapshot().nodes or {})[lost].raw_state
    world.person_resumes(lost)
    await_node(world, lost, NodeState.UP)
