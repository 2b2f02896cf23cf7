"""From where a run goes on stands in its story."""

from __future__ import annotations

from world import World

from unicrond.model.events import SignalArrived
from unicrond.model.incident import Signal, SignalKind
from unicrond.model.run import RunState

SAID = (
    "train step 7 in memory is refused: what rank 1 of 4 kept; train step 6 in memory is restored"
)


def test_which_copy_was_restored_and_which_refused_is_told_and_nothing_follows() -> None:
    world = World()
    world.nodes(2)
    job = world.submit(2)
    world.until(lambda: job in world.core.state.runs and world.run(job).state is RunState.RUNNING)
    run = world.run(job)
    assert run.assignment is not None
    node = run.assignment.slots[0].node
    signal = Signal(world.clock.at, SignalKind.RESTORED, job, node, None, "m", run.generation, SAID)
    world.tell(SignalArrived(signal))
    world.tick()
    assert any(SAID in entry.text for entry in world.store.journal)  # type: ignore[attr-defined]
    assert not world.core.state.incidents
    assert world.run(job).generation == run.generation
