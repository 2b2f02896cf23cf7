"""Runs that are slow or learn nothing: people are told, and nothing else follows."""

from __future__ import annotations

import random

import pytest
from test_healing import story_of, told
from world import World, kinds, running

from detectors.pace import WINDOW
from unicrond.model.decision import ActionKind
from unicrond.model.events import AgentBeat
from unicrond.model.incident import Incident, Severity, SignalKind
from unicrond.model.pace import Pace
from unicrond.model.run import RunState


@pytest.fixture
def world() -> World:
    world = World()
    world.nodes(6)
    return world


class Paces:
    """What agents add to their beats, a window each second."""

    def __init__(self, world: World, job: int) -> None:
        self.world, self.job, self.window = world, job, 0
        self.dice = random.Random(1)

    def pass_windows(self, count: int, slow: dict[int, float] | None = None) -> None:
        for _ in range(count):
            run = self.world.run(self.job)
            assert run.assignment is not None
            own = {
                slot.rank: self.dice.gauss(0.2, 0.002) * (slow or {}).get(slot.rank, 1.0)
                for slot in run.assignment.slots
            }
            for slot in run.assignment.slots:
                pace = Pace(self.window, max(own.values()) + 0.01, own[slot.rank])
                self._beat(slot.node, slot.rank, pace)
            self.window += 1
            self.world.pass_seconds(WINDOW * 0.25)

    def _beat(self, node: str, rank: int, pace: Pace) -> None:
        run = self.world.run(self.job)
        view = run.agents[node]
        beat = AgentBeat(
            at=self.world.clock.at,
            run_id=self.job,
            node=node,
            agent=view.agent,
            phase=view.phase,
            generation=run.generation,
            stopped_generation=view.stopped_generation,
            iteration=view.iteration,
            paces=((rank, pace),),
        )
        self.world.tell(beat)


def open_(world: World) -> list[Incident]:
    return [i for i in world.core.state.incidents.values() if i.only_told]


def test_a_straggler_is_named_and_a_person_told_while_the_run_goes_on(world: World) -> None:
    job = running(world)
    paces = Paces(world, job)
    paces.pass_windows(30)
    assert open_(world) == []
    paces.pass_windows(5, {1: 1.1})
    [incident] = open_(world)
    assert (incident.kind, incident.root_rank, incident.root_node) == ("straggler", 1, "n2")
    assert incident.severity is Severity.NONE
    world.pass_seconds(120)
    assert set(kinds(world)) == {ActionKind.NOTIFY}
    assert (world.run(job).generation, open_(world)) == (1, [incident])
    paces.pass_windows(10)
    assert open_(world) == []
    assert "it is as fast again" in story_of(world)


def test_a_failure_while_a_straggler_is_known_is_an_incident_of_its_own(world: World) -> None:
    job = running(world)
    paces = Paces(world, job)
    paces.pass_windows(30)
    paces.pass_windows(5, {1: 1.3})
    world.agents.kill_rank(job, "n3")
    world.until(lambda: world.run(job).generation == 2)
    world.until(lambda: world.run(job).state is RunState.RUNNING)
    assert "rank 2 on n3 ended by signal 9" in story_of(world)
    assert ActionKind.START_RANKS in kinds(world)
    assert open_(world) == [], "the next generation is compared afresh"


def test_a_run_that_is_slower_as_a_whole_is_told_once(world: World) -> None:
    job = running(world)
    paces = Paces(world, job)
    paces.pass_windows(40)
    paces.pass_windows(30, dict.fromkeys(range(3), 1.3))
    [incident] = open_(world)
    assert (incident.kind, incident.root_rank) == ("slow-down", None)
    assert "an iteration takes 1.2" in incident.summary or "takes 1.3" in incident.summary
    assert kinds(world) == [ActionKind.NOTIFY]


def test_a_run_that_is_slower_for_its_straggler_is_one_incident(world: World) -> None:
    job = running(world)
    paces = Paces(world, job)
    paces.pass_windows(40)
    paces.pass_windows(30, {1: 1.5})
    [incident] = open_(world)
    assert (incident.kind, incident.root_rank) == ("straggler", 1)
    assert "an iteration takes 1." in story_of(world)


def test_an_agent_speaks_of_its_own_ranks_alone(world: World) -> None:
    job = running(world)
    paces = Paces(world, job)
    for window in range(40):
        for rank in range(3):
            paces._beat("n1", rank, Pace(window, 1.0, 9.0 if rank == 2 else 1.0))
        world.pass_seconds(1)
    assert open_(world) == []


def test_losses_that_are_no_number_are_one_incident_of_all_ranks(world: World) -> None:
    job = running(world)
    odd = {"not_a_number": True, "iteration": 41, "loss": "nan", "usual": "2.5"}
    for rank in (2, 0, 1):
        told(job, world, SignalKind.LOSS, rank, **odd)
        world.pass_seconds(1)
    [incident] = open_(world)
    assert (incident.kind, incident.root_rank, incident.count) == ("NaN/loss spike", 2, 3)
    assert "from train step 41 on its loss is nan" in incident.summary
    assert kinds(world) == [ActionKind.NOTIFY]
    world.slurm.scancel(job)
    world.until(lambda: world.run(job).state is RunState.CANCELLED)
    assert open_(world) == []
