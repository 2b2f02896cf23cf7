"""Survivors keep their processes: who is kept, who is not, and what follows where it fails."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checkers import Checkers
from world import DyingStore, KilledError, World, kinds, running

from db.memory import MemoryStore
from transition.membership import IN_PLACE, kept_in, legal_size
from unicrond.core.policy import Policy
from unicrond.model.decision import ActionKind, Mode, OutcomeState
from unicrond.model.events import ModeSet, SignalArrived
from unicrond.model.incident import Signal, SignalKind
from unicrond.model.run import HealStep, LossState, Run, RunState
from unicrond.model.workload import Layout, Workload

REFUSED = "RuntimeError: ncclSystemError: Connection refused"  # SEV3


@pytest.fixture
def world() -> World:
    world = World()
    world.checks.append(Checkers())
    world.nodes(6)
    return world


def elastic(world: World, nodes: int = 3, **wish: object) -> int:
    wish = {"ranks_per_node": 2, "min_nodes": nodes, "elastic": True, **wish}
    return running(world, nodes, **wish)


def goes_on(world: World, job: int, generation: int = 2, within_seconds: float = 60.0) -> float:
    return world.until(
        lambda: (
            world.run(job).generation == generation and world.run(job).state is RunState.RUNNING
        ),
        within_seconds,
    )


def kept(world: World, job: int) -> list[tuple[str, int]]:
    """Node and local rank of the members that the newest generation did not make."""
    return [(slot.node, slot.local_rank) for slot in kept_in(world.run(job).assignment)]


def story_of(world: World) -> str:
    return "\n".join(entry.text for entry in world.store.journal)


def choices(world: World) -> list[str]:
    return [decision.choice for decision in world.store.decisions]


def begins(world: World, job: int, step: HealStep) -> None:
    world.until(lambda: (h := world.run(job).healing) is not None and h.step is step)


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


# ---------------------------------------------------------------- joining


def test_where_it_may_shrink_the_others_train_on_at_once_and_the_node_follows(
    world: World,
) -> None:
    job = elastic(world, min_nodes=2)
    world.agents.kill_rank(job, "n2")
    assert goes_on(world, job) < 1.5
    assert world.run(job).assignment.nodes == ("n1", "n3")
    assert len(kept(world, job)) == 4
    assert "n2 to follow once new ranks are prepared there" in story_of(world)
    step = world.agents.jobs[job].step
    goes_on(world, job, 3)
    assert world.agents.jobs[job].step >= step + 2, "they train while it is prepared"
    assert world.run(job).assignment.nodes == ("n1", "n3", "n2")
    assert kept(world, job) == [("n1", 0), ("n1", 1), ("n3", 0), ("n3", 1)]
    members = {slot.member for slot in world.agents.jobs[job].agents["n2"].slots()}
    assert members == {"u:2.3.4", "u:2.3.5"}
    assert choices(world) == ["shrink", "grow", "grow"]
    assert ActionKind.STOP_RANKS in kinds(world), "the other rank of n2"
    world.pass_seconds(30)
    assert world.run(job).generation == 3 and world.core.state.incidents == {}


def test_a_node_that_comes_back_joins_the_run_that_left_it(world: World) -> None:
    job = elastic(world, min_nodes=2)
    world.slurm.stop_controller()  # it can be neither drained nor given back meanwhile
    world.cut("n2")
    goes_on(world, job)
    world.restore("n2")
    goes_on(world, job, 3)
    assert world.run(job).assignment.nodes == ("n1", "n3", "n2")
    assert world.run(job).loss_of("n2").state is LossState.RETURNED


def test_a_node_that_a_person_drained_does_not_join(world: World) -> None:
    job = elastic(world, min_nodes=2)
    world.slurm.drain_by_person("n2", "bad fan")
    world.agents.kill_rank(job, "n2")
    goes_on(world, job)
    world.pass_seconds(60)
    assert world.run(job).generation == 2


def test_a_rank_that_dies_while_others_are_prepared_is_healed_first(world: World) -> None:
    job = elastic(world, 4, min_nodes=2)
    world.agents.kill_rank(job, "n2")
    world.until(lambda: world.run(job).joining is not None)
    world.agents.kill_rank(job, "n3")
    goes_on(world, job, 3)
    assert world.run(job).assignment.nodes == ("n1", "n4")
    goes_on(world, job, 4)
    assert sorted(world.run(job).assignment.nodes) == ["n1", "n2", "n3", "n4"]
    assert world.core.state.incidents == {}


@pytest.mark.parametrize("fault", ["deaf", "dies", "paused"])
def test_nodes_that_cannot_join_are_left_where_they_are(world: World, fault: str) -> None:
    job = elastic(world, min_nodes=2)
    if fault == "deaf":
        world.lost_orders.add((ActionKind.PREPARE_RANKS, "n2"))
    world.agents.kill_rank(job, "n2")
    world.until(lambda: world.run(job).joining is not None)
    if fault == "dies":
        world.cut("n2")
    elif fault == "paused":
        world.tell(ModeSet(world.clock.at, Mode.PAUSED, "root"))
    world.until(lambda: world.run(job).joining is None, within_seconds=150)
    assert world.run(job).generation == 2 and world.run(job).state is RunState.RUNNING
    assert world.core.state.incidents == {}


def test_a_node_whose_ranks_die_again_and_again_joins_no_more(world: World) -> None:
    job = elastic(world, min_nodes=2)
    for generation in (2, 4, 6, 8):
        world.agents.kill_rank(job, "n2")
        goes_on(world, job, generation)
        if generation < 8:
            goes_on(world, job, generation + 1)
            world.pass_seconds(5)
    world.pass_seconds(60)
    assert world.run(job).assignment.nodes == ("n1", "n3")


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


def interrupted(write: int, after: bool, least: int = 3) -> World:
    """A rank dies, and unicrond at the given write (0: never)."""
    store = DyingStore(MemoryStore(), at=write, after=after)
    world = World(store=store)
    world.checks.append(Checkers())
    world.nodes(3)
    job = world.submit(3, min_nodes=least, ranks_per_node=2, elastic=True)
    end, died = world.clock.at + 20, world.clock.at + 6
    while world.clock.at < end:
        if world.clock.at == died:
            world.agents.kill_rank(job, "n2")
        try:
            world.tick()
        except KilledError:
            world.kill_unicrond()
            world.start_unicrond()
    return world


FIRST = 6  # writes before the rank dies
WRITES = interrupted(0, after=False).store.writes
WRITES_WITH_JOINING = interrupted(0, after=False, least=2).store.writes


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write", range(FIRST, WRITES + 1))
def test_killed_at_any_write_the_survivors_are_kept_all_the_same(write: int, after: bool) -> None:
    world = interrupted(write, after)
    assert world.run(1).state is RunState.RUNNING
    assert (world.run(1).generation, len(kept(world, 1))) == (2, 5)
    assert world.core.state.pending == {} and world.core.state.incidents == {}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write", range(FIRST, WRITES_WITH_JOINING + 1))
def test_killed_at_any_write_the_node_joins_those_that_went_on_without_it(
    write: int, after: bool
) -> None:
    world = interrupted(write, after, least=2)
    assert world.run(1).state is RunState.RUNNING
    assert sorted(world.run(1).assignment.nodes) == ["n1", "n2", "n3"]
    assert len(kept(world, 1)) >= 4
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


# ---------------------------------------------------------------- whole replicas


def test_only_whole_replicas_go_on_and_only_whole_ones_join() -> None:
    """Two nodes hold one: whoever loses its other half waits until a node is back."""
    world = World()
    world.checks.append(Checkers())
    world.nodes(4)
    layout = Workload(layouts=(Layout(tensor=2, pipeline=2),))
    job = elastic(world, 4, min_nodes=2, workload=layout)
    world.agents.kill_rank(job, "n2")
    goes_on(world, job)
    assert len(world.run(job).assignment.nodes) == 4, "three hold one replica and a half"
    world.pass_seconds(5)
    world.cut("n2")
    goes_on(world, job, 3)
    assert world.run(job).assignment.nodes == ("n1", "n3")
    world.pass_seconds(30)
    assert world.run(job).generation == 3, "n4 alone is no replica"


@pytest.mark.parametrize(
    ("ranks_per_node", "workers", "most", "size"),
    [
        (1, 1, 5, 5),
        (2, 4, 5, 4),
        (8, 2, 5, 5),
        (2, 3, 5, 3),
        (2, 8, 3, 0),
        (8, 64, 17, 16),
        (1, 7, 5, 5),
    ],
)
def test_the_largest_size_of_whole_replicas(
    ranks_per_node: int, workers: int, most: int, size: int
) -> None:
    run = replace(wish(), ranks_per_node=ranks_per_node)
    run = replace(run, workload=Workload(layouts=(Layout(tensor=workers),)))
    assert legal_size(run, most) == size


def wish() -> Run:
    nodes = tuple(f"n{number}" for number in range(1, 25))
    return Run(1, "run", "alice", 1001, 1.0, 1, 24, 1, nodes, "n1", 0)
