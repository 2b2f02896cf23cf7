"""Short stories of runs too small to go on: who requeues them, when, and what spares it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from world import World, kinds, running

from unicrond.core.policy import Policy
from unicrond.core.queued import nodes_to_ask_for
from unicrond.model.cluster import JobState, NodeState
from unicrond.model.decision import ActionKind, Mode
from unicrond.model.run import LossState, Phase, RunState
from unicrond.slurm.simulated import SimulatedSlurm


@pytest.fixture
def world() -> World:
    world = World()
    world.nodes(6)
    return world


def test_a_lost_node_below_the_minimum_requeues_the_run_at_once(world: World) -> None:
    job = running(world)
    world.cut("n2")
    took = world.until(
        lambda: world.run(job).restarts == 1 and world.run(job).state is RunState.RUNNING
    )
    assert took < 20  # Slurm alone: 40 s for the loss, 120 s in the queue
    assert "n2" not in world.run(job).nodes
    assert world.run(job).generation == 1001
    assert world.core.state.incidents == {}
    done = kinds(world)
    order = [ActionKind.DRAIN, ActionKind.SHRINK, ActionKind.REQUEUE, ActionKind.EXPEDITE]
    assert [kind for kind in done if kind in order] == order


def test_a_requeue_waits_until_slurm_took_the_lost_batch_host(world: World) -> None:
    """Slurm 22.05 breaks the GPUs of a job that loses a node while it completes for a requeue."""
    job = running(world)
    world.cut("n1")
    world.until(lambda: ActionKind.REQUEUE in kinds(world))
    assert world.slurm.snapshot().nodes["n1"].state is NodeState.DOWN
    assert ActionKind.SHRINK not in kinds(world)
    world.until(lambda: world.run(job).restarts == 1 and world.run(job).state is RunState.RUNNING)
    assert world.core.state.incidents == {}


def test_a_batch_host_that_slurm_never_takes_holds_up_the_requeue_for_a_time_only() -> None:
    world = World()
    world.slurm = SimulatedSlurm(world.clock, slurmd_timeout_seconds=600)
    world.nodes(6)
    job = running(world)
    world.cut("n1")
    took = world.until(lambda: ActionKind.REQUEUE in kinds(world))
    assert took < world.core.state.policy.release_timeout_seconds + 10
    world.until(lambda: world.run(job).restarts == 1, within_seconds=700)


def test_a_node_back_before_it_left_the_job_spares_the_requeue(world: World) -> None:
    job = running(world)
    world.cut("n2")
    world.until(lambda: world.run(job).state is RunState.HEALING)
    world.restore("n2")
    world.until(lambda: world.run(job).generation == 2 and world.run(job).state is RunState.RUNNING)
    assert world.run(job).assignment.nodes == ("n1", "n2", "n3")
    assert world.run(job).loss_of("n2").state is LossState.RETURNED
    assert ActionKind.REQUEUE not in kinds(world)


def test_a_second_node_lost_while_the_first_leaves_leaves_too(world: World) -> None:
    job = running(world)
    world.cut("n2")
    world.pass_seconds(1)
    world.cut("n3")
    world.until(lambda: world.run(job).restarts == 1)
    assert {a.node for a in world.performed if a.kind is ActionKind.SHRINK} == {"n2", "n3"}
    world.until(lambda: world.run(job).state is RunState.RUNNING)
    assert world.run(job).nodes == ("n1", "n4", "n5")


def test_slurmctld_away_holds_up_a_requeue_no_longer_than_itself(world: World) -> None:
    job = running(world)
    world.slurm.stop_controller()
    world.cut("n2")
    world.pass_seconds(60)
    world.slurm.start_controller()
    world.until(lambda: world.run(job).restarts == 1 and world.run(job).state is RunState.RUNNING)
    assert world.core.state.incidents == {}


def test_a_requeued_run_that_breaks_before_it_runs_is_healed_like_any_other(world: World) -> None:
    job = running(world)
    world.cut("n2")
    world.until(lambda: world.run(job).restarts == 1)
    world.agents.cut_from_unicrond.add("n4")
    world.until(lambda: world.run(job).generation == 1001)
    world.until(lambda: world.agents.jobs[job].agents["n1"].phase is Phase.RUNNING)
    assert world.run(job).state is RunState.STARTING
    world.agents.kill_rank(job, "n1")
    world.pass_seconds(1)
    world.agents.cut_from_unicrond.clear()
    took = world.until(
        lambda: world.run(job).generation == 1002 and world.run(job).state is RunState.RUNNING
    )
    assert took < 10
    assert world.run(job).assignment.nodes == ("n1", "n3", "n4")
    assert world.run(job).restarts == 1
    assert world.core.state.incidents == {}


def test_a_program_that_fails_at_once_is_not_requeued_for_agents_that_are_still_to_come(
    world: World,
) -> None:
    """The first agent tells of its rank's end before the others have found unicrond."""
    world.pass_seconds(10)
    world.agents.cut_from_unicrond.add("n3")
    job = world.submit(3)
    world.until(lambda: job in world.core.state.runs and world.run(job).generation == 1)
    world.until(lambda: world.agents.jobs[job].agents["n1"].phase is Phase.RUNNING)
    world.agents.kill_rank(job, "n1", signal=None)
    world.pass_seconds(1)
    world.agents.cut_from_unicrond.clear()
    world.until(lambda: world.run(job).generation == 2 and world.run(job).state is RunState.RUNNING)
    assert world.run(job).assignment.nodes == ("n1", "n2", "n3")
    assert ActionKind.REQUEUE not in kinds(world)


def test_a_job_that_slurm_fails_for_its_early_batch_host_is_requeued() -> None:
    world = World(early_return_fails=True)
    world.nodes(6)
    job = running(world, min_nodes=2)
    world.cut("n1")
    world.until(lambda: world.run(job).generation == 2)
    world.until(lambda: world.slurm.snapshot().nodes["n1"].state is NodeState.DOWN)
    world.restore("n1")
    world.until(lambda: world.run(job).restarts == 1 and world.run(job).state is RunState.RUNNING)
    assert world.core.state.incidents == {}


def test_a_job_that_somebody_else_requeued_is_the_same_run_and_does_not_wait(world: World) -> None:
    job = running(world)
    world.slurm.requeue(job, 0)
    took = world.until(
        lambda: world.run(job).restarts == 1 and world.run(job).state is RunState.RUNNING
    )
    assert took < 20, "Slurm alone holds it for 120 s"
    assert world.run(job).generation == 1001
    assert world.core.state.incidents == {}


def test_a_requeued_job_that_its_owner_holds_stays_on_hold(world: World) -> None:
    job = running(world)
    world.slurm.requeue(job, 0)
    world.slurm.hold_by_person(job)
    world.pass_seconds(30)
    assert ActionKind.EXPEDITE not in kinds(world)
    world.slurm.release_by_person(job)
    world.until(lambda: world.run(job).state is RunState.RUNNING, within_seconds=20)


def test_somebody_elses_requeue_is_only_told_where_we_may_not_act(world: World) -> None:
    job = running(world)
    world.core.state.mode = Mode.OBSERVE
    world.slurm.requeue(job, 0)
    world.pass_seconds(60)
    assert world.run(job).state is RunState.REQUEUED
    assert world.performed == []


def test_a_requeued_run_asks_for_the_nodes_that_are_free_and_its_user_allows() -> None:
    world = World()
    world.nodes(4)
    job = running(world, min_nodes=2)
    world.cut("n2")
    world.cut("n3")
    took = world.until(
        lambda: world.run(job).restarts == 1 and world.run(job).state is RunState.RUNNING
    )
    assert took < 30
    assert world.run(job).nodes == ("n1", "n4")
    assert [a.args["nodes"] for a in world.performed if a.kind is ActionKind.EXPEDITE] == [2]


def test_a_run_that_may_not_shrink_waits_for_its_size() -> None:
    world = World()
    world.nodes(3)
    job = running(world)
    world.cut("n2")
    world.until(lambda: world.run(job).state is RunState.REQUEUED)
    world.pass_seconds(60)
    assert world.run(job).state is RunState.REQUEUED
    assert [a.args["nodes"] for a in world.performed if a.kind is ActionKind.EXPEDITE] == [0]


def test_a_requeued_run_takes_no_more_than_before_while_others_wait(world: World) -> None:
    job, other = running(world, nodes=2, min_nodes=1), world.submit(6)
    wish = replace(world.run(job), max_nodes=6)
    allocation = world.slurm.snapshot().allocations[job]
    world.pass_seconds(3)
    assert nodes_to_ask_for(world.core.state, wish, allocation, ()) == 0
    world.slurm.scancel(other)
    world.pass_seconds(3)
    assert nodes_to_ask_for(world.core.state, wish, allocation, ()) == 6


def test_a_run_that_waits_may_start_where_somebody_thought_better_of_a_drain() -> None:
    world = World()
    world.nodes(3)
    job = running(world, nodes=2)
    world.slurm.drain_by_person("n1", "new cables")
    world.until(lambda: world.run(job).state is RunState.REQUEUED)
    world.slurm.drain_by_person("n3", "and there")
    world.pass_seconds(60)
    assert world.run(job).state is RunState.REQUEUED
    world.slurm.resume_by_person("n1")
    world.until(lambda: world.run(job).state is RunState.RUNNING, 30)
    assert world.run(job).nodes == ("n1", "n2")


def test_a_run_whose_program_failed_is_over_though_slurm_puts_its_job_on_hold(world: World) -> None:
    """As Slurm 25.11 does with `--requeue=expedite`."""
    job = running(world)

    def hold(job: int, code: int) -> None:
        world.slurm.requeue(job, 0)
        world.slurm.hold_by_person(job)

    world.agents._complete = hold
    world.agents.kill_rank(job, "n1", signal=None, code=93)
    world.until(lambda: world.run(job).state is RunState.FAILED, 30)
    assert "asks not to be restarted" in world.run(job).end_reason
    world.pass_seconds(60)
    assert ActionKind.EXPEDITE not in kinds(world)
    assert world.core.state.incidents == {}


@pytest.mark.parametrize("kept", [True, False])
def test_a_requeued_run_has_its_nodes_again_where_the_site_keeps_them(kept: bool) -> None:
    world = World(Policy(mode=Mode.ACTIVE, keep_freed_nodes=kept))
    world.nodes(4)
    job = running(world, nodes=3)
    other = world.submit(2, user="bob", uid=1002)
    world.cut("n3")
    world.until(lambda: world.run(job).state is RunState.REQUEUED)
    world.pass_seconds(30)
    states = {j: world.slurm.snapshot().allocations[j].state for j in (job, other)}
    assert (states[job] is JobState.RUNNING) is kept
    assert (states[other] is JobState.RUNNING) is not kept
    assert (ActionKind.RESERVE in kinds(world)) is kept
