"""Stories off the usual way: modes that change, faults that meet, words that come late."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checkers import Checkers
from world import World, kinds, running

from db.memory import MemoryStore
from unicrond.core.policy import Policy
from unicrond.core.step import TICK_SECONDS
from unicrond.model.decision import ActionKind, Mode
from unicrond.model.events import AgentJoined, ModeSet, Registration, SignalArrived, SnapshotTaken
from unicrond.model.incident import Signal, SignalKind
from unicrond.model.run import Phase, RunState
from unicrond.slurm.parse import unknown_job


@pytest.fixture
def world() -> World:
    world = World()
    world.nodes(6)
    return world


def lines(world: World) -> int:
    assert isinstance(world.store, MemoryStore)
    return len(world.store.journal)


def set_mode(world: World, mode: Mode, job: int | None = None) -> None:
    world.tell(ModeSet(world.clock.at, mode, "an admin", job))


def sensed(world: World, job: int, kind: SignalKind, rank: int, **data: object) -> None:
    """A sensor of the agent on the rank's node speaks, in runs of one rank a node from n1 on."""
    now, generation = world.clock.at, world.run(job).generation
    said = Signal(now, kind, job, f"n{rank + 1}", rank, generation=generation, data=data)
    world.tell(SignalArrived(said))


def heals(world: World, job: int, generation: int = 2, within_seconds: float = 15) -> float:
    return world.until(
        lambda: (
            world.run(job).generation == generation and world.run(job).state is RunState.RUNNING
        ),
        within_seconds,
    )


def test_a_requeued_run_waits_quietly_while_unicrond_is_paused() -> None:
    world = World()
    world.nodes(3)
    job = running(world)
    world.cut("n2")
    world.until(lambda: ActionKind.REQUEUE in kinds(world))
    set_mode(world, Mode.PAUSED)
    world.until(lambda: world.run(job).state is RunState.REQUEUED)
    world.pass_seconds(5)
    before = lines(world)
    world.pass_seconds(60)
    assert lines(world) - before < 5


def test_a_fault_after_one_that_was_only_observed_is_healed(world: World) -> None:
    job = running(world)
    set_mode(world, Mode.OBSERVE)
    world.pass_seconds(1)
    sensed(world, job, SignalKind.SLOW, 1, process_state="T", seconds=0.9, usual_seconds=0.2)
    world.pass_seconds(5)
    set_mode(world, Mode.ACTIVE)
    world.pass_seconds(5)
    assert world.performed == []
    world.agents.kill_rank(job, "n3")
    heals(world, job)


def test_progress_of_an_hour_ago_vouches_for_nobody(world: World) -> None:
    job = running(world, min_nodes=2)
    world.agents.cut_from_unicrond.add("n2")
    world.pass_seconds(30)
    assert world.performed == [], "its peers hear it, and the run goes on"
    world.cut("n2")
    heals(world, job)


def test_a_run_that_slurm_started_again_meanwhile_is_not_healed_by_old_orders(world: World) -> None:
    job = running(world, min_nodes=2)
    world.cut("n2")
    world.until(lambda: world.run(job).state is RunState.HEALING)
    world.kill_unicrond()
    world.restore("n2")
    world.slurm.requeue(job, 0)
    world.pass_seconds(150)
    before = len(world.performed)
    world.start_unicrond()
    heals(world, job, 1001)
    world.pass_seconds(60)
    assert (world.run(job).restarts, world.run(job).generation) == (1, 1001)
    assert world.core.state.incidents == {}
    late = world.performed[before:]
    assert {a.kind for a in late} <= {ActionKind.PROBE, ActionKind.DRAIN, ActionKind.SHRINK}, late


def test_a_run_that_a_person_requeues_after_its_end_has_a_fresh_start(world: World) -> None:
    job = running(world)
    sensed(world, job, SignalKind.RANK_EXITED, 1, exit_code=93, signal=0)
    world.until(lambda: world.run(job).state is RunState.FAILED)
    world.slurm.requeue(job, 0)
    heals(world, job, 1001, within_seconds=200)
    assert world.run(job).end_reason == ""
    world.agents.kill_rank(job, "n2")
    heals(world, job, 1002)


def test_a_rank_that_asks_not_to_be_restarted_is_not(world: World) -> None:
    job = running(world)
    sensed(world, job, SignalKind.RANK_EXITED, 1, exit_code=93, signal=0)
    world.until(lambda: world.run(job).state is RunState.FAILED)
    assert set(kinds(world)) == {ActionKind.END_RUN}
    assert world.run(job).finished_code == 93
    assert "asks not to be restarted" in world.run(job).end_reason


def test_what_was_seen_of_one_generation_says_nothing_of_the_next(world: World) -> None:
    job = running(world)
    slow = {"process_state": "S", "seconds": 99.0, "usual_seconds": 0.2, "overdue": True}
    for rank in (0, 1):
        sensed(world, job, SignalKind.SLOW, rank, **slow)
    world.pass_seconds(0.5)
    world.agents.kill_rank(job, "n3")
    heals(world, job)
    sensed(world, job, SignalKind.SLOW, 2, **slow)
    world.pass_seconds(0.5)
    assert world.run(job).generation == 2
    assert world.run(job).healing is None


def test_many_nodes_lost_at_once_are_drained_within_the_budget() -> None:
    world = World(policy=Policy(mode=Mode.ACTIVE, drains_per_hour=1))
    world.nodes(6)
    job = running(world, 5, min_nodes=2)
    for node in ("n2", "n3", "n4"):
        world.cut(node)
    heals(world, job)
    world.pass_seconds(100)
    assert kinds(world).count(ActionKind.DRAIN) == 1
    assert ActionKind.NOTIFY in kinds(world)


def test_a_node_where_two_users_fail_is_not_drained_beyond_the_budget() -> None:
    world = World(policy=Policy(mode=Mode.ACTIVE, drains_per_hour=0))
    world.nodes(6)
    one = running(world, min_nodes=2)
    two = running(world, min_nodes=2, user="bob", uid=1002)
    both = {"exit_code": 1, "signal": 0, "stderr": "CUDA error: uncorrectable ECC error"}
    for job in (one, two):
        now, generation = world.clock.at, world.run(job).generation
        said = Signal(
            now, SignalKind.RANK_EXITED, job, "n2", 1, generation=generation, data=dict(both)
        )
        world.tell(SignalArrived(said))
        world.pass_seconds(10)
        assert world.run(job).shunned == ("n2",)
    assert ActionKind.DRAIN not in kinds(world)
    assert ActionKind.NOTIFY in kinds(world)


def test_a_lost_node_is_no_failure_of_the_program(world: World) -> None:
    job = running(world, min_nodes=2)
    set_mode(world, Mode.OBSERVE)
    for _ in range(4):
        world.pass_seconds(1)
        world.agents.jobs[job].step = -1000
        world.agents.kill_rank(job, "n2")
        world.pass_seconds(70)
        world.agents.jobs[job].unattended = 0
        world.until(lambda: world.run(job).state is RunState.RUNNING)
    world.agents.jobs[job].step = 5000
    world.pass_seconds(10)
    set_mode(world, Mode.ACTIVE)
    generation = world.run(job).generation
    world.cut("n3")
    heals(world, job, generation + 1)


def test_a_heal_is_laid_down_when_unicrond_is_paused_and_taken_up_again(world: World) -> None:
    job = running(world, min_nodes=2)
    world.cut("n2")
    world.until(lambda: world.run(job).state is RunState.HEALING)
    set_mode(world, Mode.PAUSED)
    world.pass_seconds(30)
    assert ActionKind.START_RANKS not in kinds(world)
    set_mode(world, Mode.ACTIVE)
    heals(world, job)
    assert world.run(job).restarts_without_progress == 0
    world.until(lambda: world.slurm.snapshot().nodes["n2"].reason.startswith("unicron: "))
    world.pass_seconds(60)
    assert world.core.state.incidents == {}


def test_a_person_is_called_once_for_many_silent_nodes_whoever_joins_meanwhile() -> None:
    world = World()
    world.nodes(12)
    for _ in range(2):
        running(world, min_nodes=1)
    for node in ("n2", "n3", "n4", "n5"):
        world.cut(node)
    world.pass_seconds(10)
    running(world, 1)
    world.pass_seconds(5)
    assert kinds(world) == [ActionKind.NOTIFY]
    for node in ("n2", "n3", "n4", "n5"):
        world.restore(node)
    world.pass_seconds(5)
    assert "many silent" not in {i.kind for i in world.core.state.incidents.values()}


def test_who_hangs_for_a_rank_that_ended_early_is_not_to_blame(world: World) -> None:
    job = running(world)
    world.agents.jobs[job].agents["n2"].phase = Phase.DONE
    world.pass_seconds(2)
    for rank in (0, 2):
        sensed(
            world, job, SignalKind.SLOW, rank,
            process_state="S", seconds=99.0, usual_seconds=0.2, overdue=True,
        )  # fmt: skip
    heals(world, job)
    assert isinstance(world.store, MemoryStore)
    story = "".join(entry.text for entry in world.store.journal)
    assert "rank 1 on n2 ended with 0 while others ran on" in story


def test_a_node_that_unicrond_cannot_reach_is_waited_for_like_a_lost_one(world: World) -> None:
    """Its peers hear it, so its lease goes on; but those it trains with have stopped."""
    world.checks.append(Checkers())
    job = running(world, min_nodes=2)
    world.agents.cut_from_unicrond.add("n2")
    world.pass_seconds(20)
    world.agents.kill_rank(job, "n3")
    took = heals(world, job)
    assert took > world.policy.lease_seconds
    assert world.run(job).assignment.nodes == ("n1", "n3")
    assert ActionKind.DRAIN not in kinds(world)
    assert isinstance(world.store, MemoryStore)
    assert "; no order reaches n2; shrinking run" in world.store.decisions[-1].reason


@pytest.mark.parametrize("least", [2, 3])
def test_a_rank_that_died_while_unicrond_was_away_costs_no_node(world: World, least: int) -> None:
    job = running(world, min_nodes=least)
    world.kill_unicrond()
    world.agents.kill_rank(job, "n2")
    world.pass_seconds(3)
    world.start_unicrond()
    heals(world, job)
    assert world.run(job).assignment.nodes == ("n1", "n2", "n3")
    assert ActionKind.REQUEUE not in kinds(world)


def test_a_lost_node_is_given_back_also_when_another_fault_is_heard_first(world: World) -> None:
    job = running(world, 4, min_nodes=2)
    world.cut("n2")
    world.pass_seconds(3.25)
    sensed(world, job, SignalKind.RANK_EXITED, 3, exit_code=1, signal=0)
    world.agents.jobs[job].agents["n4"].phase = Phase.BROKEN
    heals(world, job)
    world.until(lambda: world.slurm.snapshot().nodes["n2"].reason.startswith("unicron: "))
    world.until(lambda: "n2" not in world.run(job).nodes, within_seconds=20)


def test_agents_with_a_longer_lease_than_ours_are_waited_for_that_long(world: World) -> None:
    world.agents.lease_seconds = 12.0
    world.checks.append(Checkers())
    job = running(world, min_nodes=2)
    world.cut("n2")
    assert heals(world, job, within_seconds=25) > 12


def test_a_job_with_parts_of_nodes_is_watched_and_says_so() -> None:
    world = World()
    world.nodes(3, gpus=2)
    job = world.submit(2, min_nodes=1)
    world.until(lambda: job in world.core.state.runs)
    world.pass_seconds(10)
    world.agents.kill_rank(job, "n2")
    world.pass_seconds(10)
    assert world.performed == []
    assert isinstance(world.store, MemoryStore)
    assert "parts of nodes: it is observed only" in "".join(e.text for e in world.store.journal)


def test_what_was_only_observed_and_did_no_harm_ends(world: World) -> None:
    job = running(world)
    set_mode(world, Mode.OBSERVE)
    sensed(world, job, SignalKind.SLOW, 1, process_state="T", seconds=0.9, usual_seconds=0.2)
    world.pass_seconds(30)
    assert len(world.core.state.incidents) == 1
    world.pass_seconds(60)
    assert world.core.state.incidents == {}


def test_a_node_that_an_admin_takes_from_a_job_is_left_and_not_drained(world: World) -> None:
    job = running(world, min_nodes=2)
    world.slurm.shrink(job, ["n1", "n3"])
    heals(world, job)
    assert world.run(job).assignment.nodes == ("n1", "n3")
    world.pass_seconds(100)
    assert ActionKind.DRAIN not in kinds(world)
    assert world.core.state.incidents == {}


@pytest.mark.parametrize("mode", list(Mode))
def test_an_agent_that_is_back_with_ranks_of_a_past_generation_stops_them_once(
    world: World, mode: Mode
) -> None:
    job = running(world)
    world.agents.kill_rank(job, "n3")
    heals(world, job)
    set_mode(world, mode)
    world.tick()
    before, run, n2 = len(world.performed), world.run(job), world.agents.jobs[job].agents["n2"]
    n2.linked = False  # it answers no order for now
    for _ in range(2):
        world.tell(
            AgentJoined(
                world.clock.at,
                Registration(
                    job, "n2", n2.agent, run.uid, run.name, run.weight, run.min_nodes,
                    run.max_nodes, 1, run.nodes, 0, Phase.RUNNING, 1, -1, None,
                ),
            )
        )  # fmt: skip
    world.tick()
    keys = {action.key for action in world.performed[before:]}
    assert {action.kind for action in world.performed[before:]} == {ActionKind.STOP_RANKS}
    assert len(keys) == 1
    assert world.performed[-1].args == {"generation": 1}
    assert world.performed[-1].key.incident_id > 1, "not that of the rank, which is over"
    assert world.core.state.incidents == {}
    assert isinstance(world.store, MemoryStore)
    story = [entry.text for entry in world.store.journal if entry.kind == "signal"]
    assert story[-1] == "n2 is back with ranks of generation 1, which is over"


def test_the_lease_of_a_node_that_only_its_peers_heard_runs_from_their_last_word(
    world: World,
) -> None:
    """Found by chaos: unicrond's own silence was older, and two generations ran at once."""
    world.checks.append(Checkers())
    job = running(world, min_nodes=2)
    world.agents.cut_from_unicrond.add("n3")
    world.pass_seconds(15)
    world.cut("n3")
    cut_at = world.clock.at
    world.agents.kill_rank(job, "n2")
    heals(world, job, within_seconds=30)
    assert world.clock.at - cut_at >= 5
    assert world.run(job).assignment.nodes == ("n1", "n2")


def test_a_job_whose_record_makes_no_sense_is_told_once_and_slurm_is_well(world: World) -> None:
    job = running(world)
    seen = world.slurm.snapshot()
    odd = replace(seen, allocations={**seen.allocations, 77: unknown_job(77)}, error="77 is odd")
    world.tell(SnapshotTaken(odd))
    world.tell(SnapshotTaken(odd))
    world.pass_seconds(TICK_SECONDS)
    assert world.core.state.slurm_error == ""
    told = [entry.text for entry in world.store.journal if "Slurm" in entry.text]
    assert told == ["some of what Slurm says makes no sense: 77 is odd"]
    world.tell(SnapshotTaken(replace(odd, allocations={77: unknown_job(77)})))
    world.pass_seconds(TICK_SECONDS)
    assert world.core.state.slurm_error == "77 is odd"
    world.tell(SnapshotTaken(seen))
    world.pass_seconds(TICK_SECONDS)
    assert world.core.state.slurm_error == ""
    assert world.run(job).state is RunState.RUNNING
