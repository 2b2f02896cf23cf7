"""Survivors keep their processes: who is kept, who is not, and what follows where it fails."""

from __future__ import annotations

import pytest
from checkers import Checkers
from regrouping import FIRST, begins, choices, elastic, goes_on, interrupted, kept, story_of
from world import World, kinds

from transition.membership import IN_PLACE
from unicrond.core.policy import Policy
from unicrond.model.decision import ActionKind, Mode, OutcomeState
from unicrond.model.events import ModeSet, SignalArrived
from unicrond.model.incident import Signal, SignalKind
from unicrond.model.run import HealStep, LossState, RunState

REFUSED = "RuntimeError: ncclSystemError: Connection refused"  # SEV3


@pytest.fixture
def world() -> World:
    world = World()
    world.checks.append(Checkers())
    world.nodes(6)
    return world


def test_survivors_of_a_rank_keep_their_processes_and_it_alone_is_replaced(world: World) -> None:
    job = elastic(world)
    world.agents.kill_rank(job, "n2")
    assert goes_on(world, job) < 1.5
    others = [("n1", 0), ("n1", 1), ("n2", 1), ("n3", 0), ("n3", 1)]
    assert kept(world, job) == others
    assert kinds(world) == [ActionKind.HOLD_RANKS] * 3 + [ActionKind.START_RANKS] * 3
    assert choices(world) == ["regroup"]
    story = story_of(world)
    assert "5 of 6 ranks keep their processes; regrouping run 1 on 3 nodes" in story
    assert "5 of them in the processes that they had" in story
    world.pass_seconds(30)
    assert world.run(job).generation == 2 and world.core.state.incidents == {}


def test_a_lost_node_is_left_after_its_lease_by_ranks_that_keep_their_processes(
    world: World,
) -> None:
    job = elastic(world, min_nodes=2)
    world.cut("n1")
    took = goes_on(world, job)
    assert world.core.state.policy.lease_seconds < took < 10
    assert kept(world, job) == [("n2", 0), ("n2", 1), ("n3", 0), ("n3", 1)]
    assert [slot.rank for slot in world.run(job).assignment.slots] == [0, 1, 2, 3]
    assert choices(world) == ["shrink"]
    assert "4 of 6 ranks keep their processes; shrinking run 1 from 3 to 2" in story_of(world)
    world.until(lambda: world.run(job).loss_of("n1").state is LossState.RELEASED)


def test_a_node_back_before_its_lease_is_over_loses_no_process(world: World) -> None:
    job = elastic(world, min_nodes=2)
    world.cut("n2")
    begins(world, job, HealStep.HOLD)
    world.restore("n2")
    goes_on(world, job)
    assert len(kept(world, job)) == 6


def test_a_dead_agent_is_replaced_while_the_others_wait_for_it(world: World) -> None:
    job = elastic(world)
    world.agents.kill_agent(job, "n2")
    goes_on(world, job)
    assert kept(world, job) == [("n1", 0), ("n1", 1), ("n3", 0), ("n3", 1)]
    assert len(world.run(job).assignment.nodes) == 3


def test_where_it_may_shrink_a_dead_agents_ranks_are_proved_gone_and_its_node_follows(
    world: World,
) -> None:
    job = elastic(world, min_nodes=2)
    world.agents.kill_agent(job, "n2")
    goes_on(world, job)
    assert world.run(job).assignment.nodes == ("n1", "n3")
    assert world.run(job).agents["n2"].stopped_generation == 1
    goes_on(world, job, 3)
    assert world.run(job).assignment.nodes == ("n1", "n3", "n2")


def test_a_script_that_takes_no_orders_is_restarted_as_ever(world: World) -> None:
    job = elastic(world, elastic=False)
    world.agents.kill_rank(job, "n2", REFUSED, signal=None, code=1)
    goes_on(world, job)
    assert kept(world, job) == []
    assert ActionKind.HOLD_RANKS not in kinds(world)
    assert IN_PLACE in story_of(world)


def test_another_try_in_place_is_one_where_ranks_regroup(world: World) -> None:
    job = elastic(world)
    world.agents.kill_rank(job, "n2", REFUSED, signal=None, code=1)
    world.until(lambda: bool(world.core.state.incidents))
    assert world.core.state.incidents[1].severity == "SEV3"
    goes_on(world, job)
    assert IN_PLACE not in story_of(world)
    assert len(kept(world, job)) == 5


def test_a_rank_that_does_not_take_orders_yet_is_not_kept(world: World) -> None:
    job = elastic(world)
    world.agents.kill_rank(job, "n2")
    goes_on(world, job)
    world.pass_seconds(3.5)
    world.agents.kill_rank(job, "n1")
    world.tick()
    world.agents.kill_rank(job, "n3")
    goes_on(world, job, 3)
    assert len(kept(world, job)) == 4


# ---------------------------------------------------------------- what fails


def test_a_node_that_cannot_hold_its_ranks_is_stopped_and_the_others_are_kept(
    world: World,
) -> None:
    job = elastic(world)
    world.agents.jobs[job].agents["n1"].living.clear()  # nobody has said so
    world.agents.kill_rank(job, "n2")
    goes_on(world, job)
    assert kept(world, job) == [("n2", 1), ("n3", 0), ("n3", 1)]


def test_a_kept_rank_that_died_before_its_new_place_sends_all_to_the_next_tier(
    world: World,
) -> None:
    job = elastic(world)
    world.lost_orders.add((ActionKind.START_RANKS, "n3"))  # at first
    world.agents.kill_rank(job, "n2")
    begins(world, job, HealStep.START)
    world.lost_orders.clear()
    world.agents.jobs[job].agents["n3"].living.popitem()
    goes_on(world, job, 3)
    assert kept(world, job) == []
    assert choices(world) == ["regroup", "restart"]
    assert "n3 refused: ; no rank keeps its process: restarting run 1" in story_of(world)
    assert world.run(job).restarts_without_progress == 0, "the program is not to blame"


@pytest.mark.parametrize("kind", [ActionKind.HOLD_RANKS, ActionKind.START_RANKS])
def test_an_order_that_nobody_answers_is_given_up_for_a_restart_of_all(
    world: World, kind: ActionKind
) -> None:
    job = elastic(world)
    world.lost_orders.add((kind, "n3"))
    world.agents.kill_rank(job, "n2")
    begins(world, job, HealStep.STOP)
    world.lost_orders.clear()
    goes_on(world, job, 2 if kind is ActionKind.HOLD_RANKS else 3)
    assert kept(world, job) == []
    assert "in time; no rank keeps its process" in story_of(world)


@pytest.mark.parametrize("step", [HealStep.HOLD, HealStep.START])
def test_a_second_rank_that_dies_amid_regrouping_is_replaced_too(
    world: World, step: HealStep
) -> None:
    job = elastic(world)
    world.agents.kill_rank(job, "n2")
    begins(world, job, step)
    world.agents.kill_rank(job, "n3")
    world.pass_seconds(5)
    run = world.run(job)
    assert run.state is RunState.RUNNING
    assert run.generation == (2 if step is HealStep.HOLD else 3)
    assert ("n1", 0) in kept(world, job) and ("n3", 0) not in kept(world, job)


@pytest.mark.parametrize("step", [HealStep.HOLD, HealStep.START])
def test_an_agent_that_dies_amid_regrouping_is_started_again(world: World, step: HealStep) -> None:
    job = elastic(world)
    world.agents.kill_rank(job, "n2")
    begins(world, job, step)
    world.agents.kill_agent(job, "n3")
    world.pass_seconds(15)
    run = world.run(job)
    assert run.state is RunState.RUNNING
    assert run.assignment.nodes == ("n1", "n2", "n3")
    assert ("n1", 0) in kept(world, job) and ("n3", 0) not in kept(world, job)


def test_a_node_lost_amid_regrouping_is_left(world: World) -> None:
    job = elastic(world, min_nodes=2)
    world.agents.kill_rank(job, "n2")
    begins(world, job, HealStep.HOLD)
    world.cut("n3")
    world.until(lambda: world.run(job).generation == 2, within_seconds=30)
    goes_on(world, job)
    assert kept(world, job) == [("n1", 0), ("n1", 1)]
    assert world.run(job).assignment.nodes == ("n1", "n2")


def test_what_fails_again_without_progress_gets_new_processes() -> None:
    world = World()
    world.nodes(3)
    job = elastic(world)
    for generation in (2, 3):
        world.agents.jobs[job].step = -1000
        world.agents.kill_rank(job, "n2", "Segmentation fault", signal=11)
        goes_on(world, job, generation)
        world.pass_seconds(3)
    assert kept(world, job) == []
    assert "no rank keeps its process: it failed again without progress" in story_of(world)


def test_a_rank_that_asks_for_another_try_is_no_failing_program(world: World) -> None:
    job = elastic(world)
    for generation in range(2, 8):
        world.agents.jobs[job].step = -1000
        world.agents.kill_rank(job, "n2", signal=None, code=75)
        goes_on(world, job, generation)
        world.pass_seconds(3)
    assert world.run(job).restarts_without_progress == 0
    assert len(kept(world, job)) == 5
    assert "ended with exit code 75" in story_of(world)
    assert "it asks for another try" in story_of(world)


@pytest.mark.parametrize(("state", "count"), [("T", 5), ("S", 0)])
def test_a_rank_that_hangs_is_replaced_once_it_is_known_which(
    world: World, state: str, count: int
) -> None:
    job = elastic(world)
    for rank in range(6):
        data = {"seconds": 900.0, "usual_seconds": 0.2, "overdue": True, "process_state": "S"}
        data["process_state"] = state if rank == 1 else "S"
        told = Signal(
            world.clock.at, SignalKind.SLOW, job, f"n{rank // 2 + 1}", rank,
            generation=1, data=data,
        )  # fmt: skip
        world.tell(SignalArrived(told))
    goes_on(world, job)
    assert len(kept(world, job)) == count
    assert ("n1", 1) not in kept(world, job)


# ---------------------------------------------------------------- nobody waits for ever


def test_survivors_that_nobody_gives_an_order_are_restarted_by_their_own_leader(
    world: World,
) -> None:
    job = elastic(world)
    world.agents.kill_rank(job, "n2")
    begins(world, job, HealStep.HOLD)
    world.tell(ModeSet(world.clock.at, Mode.PAUSED, "root"))
    took = goes_on(world, job, within_seconds=120)
    assert 55 < took < 70
    assert kept(world, job) == []


def test_observing_holds_nobody() -> None:
    world = World(policy=Policy(mode=Mode.OBSERVE))
    world.checks.append(Checkers())
    world.nodes(3)
    job = elastic(world)
    world.agents.kill_rank(job, "n2")
    goes_on(world, job, within_seconds=70)
    assert world.performed == []


def test_a_node_that_no_order_reaches_has_lost_its_lease_before_the_others_go_on(
    world: World,
) -> None:
    """Its peers hear it, so it is not lost; while they wait they keep its lease no more."""
    job = elastic(world, min_nodes=2)
    world.agents.cut_from_unicrond.add("n3")
    world.pass_seconds(10)
    world.agents.kill_rank(job, "n2")
    took = goes_on(world, job)
    assert took > world.core.state.policy.lease_seconds
    assert world.run(job).assignment.nodes == ("n1", "n2")
    assert kept(world, job) == [("n1", 0), ("n1", 1), ("n2", 1)]


# ---------------------------------------------------------------- every interruption of it


WRITES = interrupted(0, after=False).store.writes


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write", range(FIRST, WRITES + 1))
def test_killed_at_any_write_the_survivors_are_kept_all_the_same(write: int, after: bool) -> None:
    world = interrupted(write, after)
    assert world.run(1).state is RunState.RUNNING
    assert (world.run(1).generation, len(kept(world, 1))) == (2, 5)
    assert world.core.state.pending == {} and world.core.state.incidents == {}


def test_an_outcome_of_a_hold_that_is_over_changes_nothing(world: World) -> None:
    job = elastic(world)
    world.agents.kill_rank(job, "n2")
    goes_on(world, job)
    holds = [a for a in world.performed if a.kind is ActionKind.HOLD_RANKS]
    assert {a.args["generation"] for a in holds} == {1}
    for action in holds:
        world.agents.order(action)
    world.pass_seconds(3)
    assert world.run(job).generation == 2
    outcomes = {a.agent: a.outcomes for a in world.agents.jobs[job].agents.values()}
    assert all(
        outcome.state is OutcomeState.DONE for known in outcomes.values() for outcome in
        known.values()
    )  # fmt: skip
