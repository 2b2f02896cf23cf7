"""What living ranks print moves nothing; it explains what happens next."""

from __future__ import annotations

import pytest
from world import World

from unicrond.core import printed
from unicrond.model.events import SignalArrived
from unicrond.model.incident import Signal, SignalKind
from unicrond.model.run import RunState

OOM = "torch.OutOfMemoryError: CUDA out of memory."
STILL = {"process_state": "S", "seconds": 700.0, "usual_seconds": 0.2, "overdue": True}


@pytest.fixture
def world() -> World:
    world = World()
    world.nodes(4)
    return world


def running(world: World) -> int:
    job = world.submit(3)
    world.until(lambda: job in world.core.state.runs and world.run(job).state is RunState.RUNNING)
    world.pass_seconds(6)
    return job


def told(
    world: World, job: int, what: SignalKind, rank: int, text: str = "", **data: object
) -> None:
    run = world.run(job)
    node = run.assignment.slots[rank].node
    generation = run.generation
    signal = Signal(world.clock.at, what, job, node, rank, "", generation, text, dict(data))
    world.tell(SignalArrived(signal))


def says(world: World, job: int, rank: int, text: str = OOM, **data: object) -> None:
    about = {"kind": "GPU out of memory", "severity": "SEV2", "blame": "self", "count": 1}
    told(world, job, SignalKind.PRINTED, rank, text, **(about | data))
    world.tick()


def stands_still(world: World, job: int) -> None:
    for rank in range(3):
        told(world, job, SignalKind.SLOW, rank, **STILL)
    world.tick()


def story_of(world: World) -> str:
    return "\n".join(entry.text for entry in world.store.journal)


def test_words_alone_move_nothing(world: World) -> None:
    job = running(world)
    for rank in range(3):
        says(world, job, rank)
    world.pass_seconds(30)
    assert world.performed == []
    assert world.core.state.incidents == {}
    assert f"rank 1 on n2 printed {OOM!r} (GPU out of memory)" in story_of(world)


def test_words_explain_an_exit_that_does_not_explain_itself(world: World) -> None:
    job = running(world)
    says(world, job, 1)
    world.pass_seconds(5)
    world.agents.kill_rank(job, "n2", text="step 12", signal=6)
    world.until(lambda: world.core.state.incidents != {})
    (incident,) = world.core.state.incidents.values()
    assert incident.kind == "GPU out of memory"
    assert incident.cause_text == f"{OOM}\nstep 12"
    assert incident.rule == "exit.sigabrt"
    world.until(lambda: world.run(job).generation == 2)


@pytest.mark.parametrize("other", ["another rank", "long ago", "another generation"])
def test_words_of_another_place_or_time_explain_nothing(world: World, other: str) -> None:
    job = running(world)
    says(world, job, 0 if other == "another rank" else 1)
    if other == "long ago":
        world.pass_seconds(printed.EXPLAINS_SECONDS + 1)
    if other == "another generation":
        world.agents.kill_rank(job, "n1", text="", signal=9)
        world.until(lambda: world.run(job).generation == 2)
        world.until(lambda: world.run(job).state is RunState.RUNNING)
    world.agents.kill_rank(job, "n2", text="", signal=6)
    world.until(lambda: world.core.state.incidents != {})
    (incident,) = world.core.state.incidents.values()
    assert incident.kind == "exited abnormally"


def test_of_all_that_stand_still_it_is_the_one_that_said_why(world: World) -> None:
    job = running(world)
    says(world, job, 0, "watchdog timeout", kind="NCCL timeout", blame="unknown")
    says(world, job, 2)
    stands_still(world, job)
    (incident,) = world.core.state.incidents.values()
    assert (incident.kind, incident.root_rank, incident.root_node) == ("task hang", 2, "n3")
    assert OOM in incident.summary
    assert "watchdog timeout" in incident.cause_text


def test_of_a_hang_whose_ranks_blame_others_nobody_is_named(world: World) -> None:
    job = running(world)
    says(world, job, 0, kind="lost connection", blame="peer")
    stands_still(world, job)
    (incident,) = world.core.state.incidents.values()
    assert incident.root_rank is None


def test_a_rank_that_blames_itself_is_remembered_above_what_it_says_of_others(
    world: World,
) -> None:
    job = running(world)
    says(world, job, 1)
    says(world, job, 1, "connection closed by peer", kind="lost connection", blame="peer")
    world.agents.kill_rank(job, "n2", text="", signal=6)
    world.until(lambda: world.core.state.incidents != {})
    (incident,) = world.core.state.incidents.values()
    assert incident.kind == "GPU out of memory"


def test_words_that_make_no_sense_and_words_of_too_many_are_passed_over(world: World) -> None:
    job = running(world)
    says(world, job, 1, kind="gremlins")
    says(world, job, 1, severity="NONE")
    assert world.core.state.printed.get(job, {}) == {}
    run = world.run(job)
    for rank in range(1000):
        data = {"kind": "GPU out of memory", "severity": "SEV2"}
        at, kind = world.clock.at, SignalKind.PRINTED
        signal = Signal(at, kind, job, "n1", rank, "", run.generation, OOM * 999, data)
        world.tell(SignalArrived(signal))
    world.tick()
    kept = world.core.state.printed[job].values()
    assert len(kept) == printed.MOST_RANKS
    assert max(len(signal.text) for signal in kept) == printed.MOST_CHARACTERS
    assert story_of(world).count(" printed ") == printed.MOST_TOLD
