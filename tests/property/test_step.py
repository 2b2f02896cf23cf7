"""Whatever agents, Slurm and people say, in whatever order, `step` keeps its promises."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from db.codec import dumps, loads
from unicrond.core.policy import Policy
from unicrond.core.state import from_saved
from unicrond.core.step import Core
from unicrond.model.cluster import Allocation, JobState, Node, NodeState, Snapshot
from unicrond.model.decision import Action, ActionKind, Alternative, Mode, Outcome, OutcomeState
from unicrond.model.events import (
    AgentBeat,
    AgentJoined,
    AgentLeft,
    Event,
    ModeSet,
    OutcomeArrived,
    PlanMade,
    PlannedRun,
    Registration,
    ShareSet,
    SignalArrived,
    SnapshotTaken,
    Tick,
)
from unicrond.model.incident import Signal, SignalKind
from unicrond.model.run import Assignment, Phase, Run, Slot
from unicrond.ports import Saved

NODES = ("n1", "n2", "n3")
START = 1_000_000.0
nodes = st.sampled_from(NODES)
run_ids = st.sampled_from([1, 2])
generations = st.integers(0, 4)
some_nodes = st.lists(nodes, min_size=1, max_size=3, unique=True).map(tuple)
assignments = st.builds(
    lambda generation, order, where: Assignment(
        generation, order, tuple(Slot(i, f"{order}.{i}", n, 0) for i, n in enumerate(where))
    ),
    generations,
    st.sampled_from(["a:1", "a:2", "u:9.9"]),
    some_nodes,
)
waiting = st.just(()) | st.just((0,)) | st.just((0, 1, 2))
registrations = st.builds(
    Registration,
    run_id=run_ids,
    node=nodes,
    agent=st.sampled_from(["x", "y"]),
    uid=st.sampled_from([1001, 1002]),
    name=st.just("run"),
    weight=st.just(1.0),
    min_nodes=st.integers(1, 3),
    max_nodes=st.just(3),
    ranks_per_node=st.integers(1, 2),
    nodes=st.just(NODES),
    restarts=st.integers(0, 2),
    phase=st.sampled_from(Phase),
    generation=generations,
    stopped_generation=st.integers(-1, 4),
    assignment=st.none() | assignments,
    regrouping=waiting,
)
beats = st.builds(
    AgentBeat,
    at=st.just(START),
    run_id=run_ids,
    node=nodes,
    agent=st.sampled_from(["x", "y"]),
    phase=st.sampled_from(Phase),
    generation=generations,
    stopped_generation=st.integers(-1, 4),
    iteration=st.integers(-1, 50),
    peers_heard=st.dictionaries(nodes, st.just(START)),
    assignment=st.none() | assignments,
    regrouping=waiting,
    prepared=st.just(()) | st.just(("u:9.9.0", "u:1.2.1")),
)
signals = st.builds(
    Signal,
    at=st.just(START),
    kind=st.sampled_from(SignalKind),
    run_id=run_ids,
    node=nodes,
    rank=st.none() | st.integers(0, 5),
    generation=generations,
    text=st.sampled_from(["", "Segmentation fault", "CUDA error: ECC", "SyntaxError: x"]),
    data=st.fixed_dictionaries(
        {"exit_code": st.none() | st.integers(0, 255), "signal": st.none() | st.integers(1, 31)}
    ),
)
allocations = st.builds(
    lambda run_id, state, where, restarts: Allocation(
        run_id, "run", "alice", 1001, "lab", "main", state, where, where[0], 3, restarts=restarts
    ),
    run_ids,
    st.sampled_from(JobState),
    some_nodes,
    st.integers(0, 2),
)
snapshots = st.builds(
    lambda states, jobs: Snapshot(
        START,
        {n: Node(n, s, str(s), 1, ("main",)) for n, s in zip(NODES, states, strict=True)},
        {job.job_id: job for job in jobs},
    ),
    st.tuples(*[st.sampled_from(NodeState)] * 3),
    st.lists(allocations, max_size=2),
) | st.just(Snapshot(START, None, None, "slurmctld does not answer"))
planned = st.lists(
    st.builds(
        PlannedRun,
        run_id=st.integers(1, 3),
        pool=st.sampled_from(["p", ""]),
        generation=generations,
        before=st.integers(0, 3),
        nodes=st.integers(-1, 9),
        placed=st.just(()) | some_nodes | st.just(("nowhere", "n1")),
    ),
    max_size=3,
).map(tuple)
events = st.one_of(
    st.builds(AgentJoined, st.just(START), registrations),
    beats,
    st.builds(
        AgentLeft, st.just(START), run_ids, nodes, st.sampled_from(["x", "y"]), st.booleans()
    ),
    st.builds(SignalArrived, signals),
    st.builds(SnapshotTaken, snapshots),
    st.builds(
        ShareSet,
        st.just(START),
        run_ids,
        st.just("admin"),
        st.none() | st.floats(0.1, 10),
        st.none() | st.integers(0, 5),
    ),
    st.builds(
        ModeSet, st.just(START), st.sampled_from(Mode), st.just("admin"), st.none() | run_ids
    ),
    st.builds(Tick, st.just(START), st.floats(0, 5)),
    st.builds(
        PlanMade,
        st.just(START),
        st.sampled_from([START, START + 5, START + 1000, float("nan"), float("-inf")]),
        st.sampled_from(["", "it pays"]),
        planned,
        st.just(()) | st.just((Alternative("redivide", True, "a price"),)),
    ),
)
# an event, how long after the one before, and how the orders given so far end
moments = st.tuples(events, st.sampled_from([0.0, 0.25, 3.0, 10.0, 200.0]), st.booleans())


def answers(actions: tuple[Action, ...], now: float, good: bool) -> list[Event]:
    state = OutcomeState.DONE if good else OutcomeState.REFUSED
    data: dict[str, object] = {"port": 29500, "passed": good}
    return [OutcomeArrived(Outcome(a.key, now, state, data=data)) for a in actions]


@settings(max_examples=120, deadline=None)
@given(st.lists(moments, max_size=40))
def test_any_story_keeps_the_promises(story: list[tuple[Event, float, bool]]) -> None:
    core = Core(from_saved(Saved(), Policy(mode=Mode.ACTIVE), START))
    now, generation, keys = START, {1: 0, 2: 0}, set()
    pending: list[Event] = []
    for event, wait, good in story:
        now += wait
        changes = core.step(now, [*pending, event])
        for run in changes.runs:
            assert run.generation >= generation[run.run_id]
            generation[run.run_id] = run.generation
            assert loads(Run, dumps(run)) == run
        for action in changes.intents:
            assert action.key not in keys
            keys.add(action.key)
            assert loads(Action, dumps(action)) == action
            assert action.key.incident_id > 0
        for decision in changes.decisions:
            assert decision.reason
            assert [a.chosen for a in decision.alternatives].count(True) == 1
        pending = answers(changes.intents, now, good)


@settings(max_examples=50, deadline=None)
@given(st.lists(moments, max_size=30))
def test_observing_never_orders_anything(story: list[tuple[Event, float, bool]]) -> None:
    core = Core(from_saved(Saved(), Policy(mode=Mode.OBSERVE), START))
    now = START
    for event, wait, _ in story:
        if isinstance(event, ModeSet):
            continue
        now += wait
        changes = core.step(now, [event])
        kinds = {action.kind for action in changes.intents}
        # an agent of a generation that is over is told to stop in every mode
        assert kinds <= {ActionKind.NOTIFY, ActionKind.STOP_RANKS}


@settings(max_examples=40, deadline=None)
@given(st.lists(moments, max_size=25))
def test_the_same_story_gives_the_same_changes(story: list[tuple[Event, float, bool]]) -> None:
    first, second = (Core(from_saved(Saved(), Policy(mode=Mode.ACTIVE), START)) for _ in range(2))
    now = START
    for event, wait, _ in story:
        now += wait
        assert repr(first.step(now, [event])) == repr(second.step(now, [event]))
