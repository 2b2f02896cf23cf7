"""Plans are carried out: idle nodes are lent, come back when they are needed, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from beside import Beside
from checkers import Checkers
from test_companions import resize, state_of, told, trains_on
from world import World, kinds, running

from db.queries import Queries
from db.store import open_store
from unicrond.core.policy import Policy
from unicrond.model.cluster import JobState
from unicrond.model.decision import ActionKind, Mode
from unicrond.model.events import ModeSet, PauseSet, PlanMade, PlannedRun, ShareSet
from unicrond.model.pause import Pause, PauseScope

GROWS = ActionKind.SUBMIT_COMPANION


@pytest.fixture
def world() -> World:
    world = World()
    world.checks.append(Checkers())
    world.nodes(6)
    return world


def wish(world: World, sizes: dict[int, int], **more: object) -> None:
    """A plan that arrives at the next tick; runs that it does not name keep what they have."""
    runs = []
    for run in world.core.state.live_runs():
        before = len(run.assignment.nodes) if run.assignment else 0
        nodes = sizes.get(run.run_id, before)
        runs.append(PlannedRun(run.run_id, "p", run.generation, before, nodes))
    plan = PlanMade(world.clock.at, world.clock.at, "it pays", tuple(runs))
    world.tell(replace(plan, **more))


def size(world: World, job: int) -> int:
    return len(trains_on(world, job))


def two(world: World) -> tuple[int, int]:
    """On two nodes each of six."""
    jobs = [running(world, nodes=2, min_nodes=1, max_nodes=4, elastic=True) for _ in range(2)]
    return jobs[0], jobs[1]


def test_runs_grow_onto_idle_nodes_and_each_change_has_its_decision(world: World) -> None:
    first, second = two(world)
    wish(world, {first: 3, second: 3})
    world.until(lambda: size(world, first) == size(world, second) == 3, within_seconds=60)
    grown = [d for d in world.store.decisions if d.choice == "grow" and "it pays" in d.reason]
    assert {d.run_id for d in grown} == {first, second}
    assert all(d.acts for d in grown)
    world.pass_seconds(5)
    assert world.core.state.incidents == {}


def test_nodes_that_the_plan_names_are_taken(world: World) -> None:
    job, _ = two(world)
    run = world.run(job)
    part = PlannedRun(job, "p", run.generation, 2, 3, ("n1", "n2", "n6"))
    wish(world, {}, runs=(part, PlannedRun(2, "p", world.run(2).generation, 2, 2)))
    world.until(lambda: size(world, job) == 3, within_seconds=60)
    (order,) = (a for a in world.performed if a.kind is GROWS)
    assert order.args["exclude"] == ["n5"]


def test_a_run_gives_back_first_and_the_next_plan_grows_the_other(world: World) -> None:
    first, second = two(world)
    wish(world, {first: 4})
    world.until(lambda: size(world, first) == 4, within_seconds=60)
    wish(world, {first: 2, second: 4})
    world.until(lambda: size(world, first) == 2, within_seconds=60)
    assert GROWS not in kinds(world)[kinds(world).index(GROWS) + 1 :], "no node is idle yet"
    assert "it waits for nodes that are to become idle" in told(world)
    world.pass_seconds(10)
    wish(world, {second: 4})
    world.until(lambda: size(world, second) == 4, within_seconds=60)


def test_nothing_is_taken_from_a_run_for_one_that_cannot_grow(world: World) -> None:
    first, second = two(world)
    wish(world, {first: 4})
    world.until(lambda: size(world, first) == 4, within_seconds=60)
    resize(world, second, 1)
    world.until(lambda: size(world, second) == 1)
    world.pass_seconds(10)
    wish(world, {first: 2, second: 4})
    world.pass_seconds(20)
    assert (size(world, first), size(world, second)) == (4, 1)
    assert "a person set its size" in told(world)


def observed(world: World, job: int) -> None:
    world.tell(ModeSet(world.clock.at, Mode.OBSERVE, "root", job))
    world.tick()


def paused(world: World, job: int) -> None:
    pause = Pause(PauseScope.ACTION, "submit_companion", world.clock.at, "root")
    world.tell(PauseSet(pause, True))
    world.tick()


def plans_paused(world: World, job: int) -> None:
    world.tell(PauseSet(Pause(PauseScope.ACTION, "plan", world.clock.at, "root"), True))
    world.tick()


def ordered_by_a_person(world: World, job: int) -> None:
    resize(world, job, 1)
    world.until(lambda: size(world, job) == 1)
    world.pass_seconds(10)


def gave_back(world: World, job: int) -> None:
    wish(world, {job: 1})
    world.until(lambda: size(world, job) == 1)
    world.pass_seconds(10)


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (observed, "(not carried out: mode observe)"),
        (paused, "not done, action submit_companion is paused by root"),
        (plans_paused, "not done, action plan is paused by root"),
        (ordered_by_a_person, "a person set its size"),
        (gave_back, "it gave nodes back or could not grow, less than 300 s ago"),
    ],
)
def test_what_may_not_be_done_is_told_once_and_not_done(
    world: World, first: Callable[[World, int], None], why: str
) -> None:
    job = running(world, nodes=2, min_nodes=1, max_nodes=4)
    first(world, job)
    for _ in range(3):
        wish(world, {job: 4})
        world.pass_seconds(2)
    assert GROWS not in kinds(world)
    assert told(world).count(why) == 1, told(world)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"seen_at": 1_000_000.0 - 100}, "and counts for 30 s"),
        ({"seen_at": float("nan")}, "a plan is dropped"),
        ({"seen_at": 2_000_000.0}, "a plan is dropped"),
        ({"runs": (PlannedRun(1, "p", 1, 2, 4),) * 2}, "run 1 is in it 2 times"),
        ({"runs": (PlannedRun(9, "p", 1, 2, 4),)}, "run 1 is not in it"),
        ({"runs": (PlannedRun(1, "p", 9, 2, 4),)}, "in generation 1, not 2 in 9"),
        ({"runs": (PlannedRun(1, "p", 1, 3, 4),)}, "has 2 nodes in generation 1, not 3"),
        ({"runs": (PlannedRun(1, "p", 1, 2, 99),)}, "its user allows 1 to 4 nodes"),
        ({"runs": (PlannedRun(1, "p", 1, 2, -1),)}, "its user allows 1 to 4 nodes"),
    ],
)
def test_a_plan_that_does_not_fit_what_is_so_is_dropped(
    world: World, more: dict[str, object], why: str
) -> None:
    job = running(world, nodes=2, min_nodes=1, max_nodes=4)
    done = len(world.performed)
    wish(world, {job: 4}, **more)
    world.pass_seconds(5)
    assert why in told(world)
    assert len(world.performed) == done


def test_who_did_not_ask_to_be_resized_is_left_alone(world: World) -> None:
    job = running(world, nodes=2)
    wish(world, {job: 3})
    world.pass_seconds(5)
    assert world.performed == []
    assert "its user wants it at this size" in told(world)


def test_plans_keep_their_budgets() -> None:
    world = World(policy=Policy(mode=Mode.ACTIVE, user_resizes_per_hour=1))
    world.nodes(6)
    first, second = two(world)
    wish(world, {first: 3, second: 3})
    world.until(lambda: size(world, first) == 3, within_seconds=60)
    assert kinds(world).count(GROWS) == 1
    assert "as many runs of this user as an hour may have" in told(world)


# with the planner


@pytest.fixture
def planned(tmp_path: Path) -> Iterator[World]:
    url = f"sqlite:///{tmp_path}/unicron.db"
    with closing(open_store(url)) as store, closing(Queries(url)) as queries:
        world = World(policy=Policy(mode=Mode.ACTIVE, regrow_seconds=60.0), store=store)
        world.checks += [Checkers(), Beside(store, queries, acts=True)]
        world.nodes(6)
        yield world


def weigh(world: World, job: int, weight: float) -> None:
    world.tell(ShareSet(world.clock.at, job, "root", weight=weight))
    world.tick()


def lent(world: World) -> tuple[int, int]:
    """A run that is worth much on three nodes, one that is not on two, and a node lent to it."""
    rich = running(world, nodes=3, min_nodes=1, max_nodes=3, elastic=True)
    weigh(world, rich, 10.0)
    poor = running(world, nodes=2, min_nodes=1, max_nodes=4, elastic=True)
    world.until(lambda: size(world, poor) == 3, within_seconds=60)
    return rich, poor


def test_a_lent_node_comes_back_when_a_run_that_is_worth_more_loses_one(planned: World) -> None:
    rich, poor = lent(planned)
    planned.pass_seconds(60)
    planned.cut(planned.run(rich).nodes[1])
    planned.until(lambda: size(planned, rich) == 2, within_seconds=60)
    took = planned.until(lambda: size(planned, rich) == 3, within_seconds=60)
    assert size(planned, poor) == 2
    assert took < 20
    planned.pass_seconds(200)
    assert (size(planned, rich), size(planned, poor)) == (3, 2), "and stays"


def test_an_idle_node_is_not_given_to_and_fro(planned: World) -> None:
    lent(planned)
    before_ = kinds(planned).count(GROWS)
    planned.pass_seconds(600)
    assert kinds(planned).count(GROWS) == before_


def test_the_lent_node_goes_to_a_job_that_waits_and_is_lent_again_when_that_ends(
    planned: World,
) -> None:
    _, poor = lent(planned)
    other = planned.submit(1, user="bob", uid=1002)
    planned.until(lambda: state_of(planned, other) is JobState.RUNNING, within_seconds=60)
    planned.until(lambda: size(planned, poor) == 2)
    planned.pass_seconds(30)
    planned.slurm.end(other, 0)
    planned.until(lambda: size(planned, poor) == 3, within_seconds=120)
