"""Beside the loop: what is noted of runs, what calls for a plan, what is learned and told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planningworld import NAMES, NOW, STARTED, a_run, a_state, lost

from db.knowledge import Knowledge, Learned, Observation
from db.queries import Queries
from db.store import SqlStore, open_store
from unicrond.core.state import State
from unicrond.model.cluster import Allocation, JobState, Node, NodeState, Snapshot
from unicrond.model.decision import Decision, Mode
from unicrond.model.incident import IncidentState, Proof, Review, Severity
from unicrond.model.run import Run, RunState
from unicrond.planning.client import recorded
from unicrond.planning.learning import Learning
from unicrond.planning.stirs import Stirs
from unicrond.planning.triggers import Cause, Trigger, Triggers
from unicrond.planning.windows import WARM_UP_ITERATIONS, Windows
from unicrond.planning.words import Ask, Reply
from unicrond.ports import Changes

# windows


def trained(windows: Windows, done: int, at: float, **more: Any) -> tuple[Observation, ...]:
    windows.look([a_run(counted=done, iteration_since=at, **more)])
    return windows.fetch()


def test_a_window_of_progress_is_an_observation() -> None:
    windows = Windows()
    assert trained(windows, WARM_UP_ITERATIONS, 100.0) == ()
    assert trained(windows, 12, 120.0) == ()
    (seen,) = trained(windows, 25, 140.0)
    assert seen == Observation(7, 3, 3, 140.0, (2.0,), 20)


def test_warm_up_and_changes_of_generation_are_no_part_of_a_window() -> None:
    windows = Windows()
    assert trained(windows, 2, 10.0) == ()
    assert trained(windows, 10, 100.0) == ()
    assert trained(windows, 10, 300.0, generation=2) == ()
    assert trained(windows, 40, 360.0, generation=2)[0].seconds == (2.0,)


def test_a_run_in_trouble_is_not_measured() -> None:
    windows = Windows()
    assert trained(windows, 10, 100.0) == ()
    assert trained(windows, 11, 130.0, state=RunState.HEALING) == ()
    assert trained(windows, 60, 200.0) == ()
    assert trained(windows, 90, 260.0)[0].seconds == (2.0,)


def test_iterations_that_the_script_tells_do_where_none_are_counted() -> None:
    windows = Windows()
    told = {"counted": 0, "generation_iteration": 1000}
    windows.look([a_run(iteration=1010, iteration_since=100.0, **told)])
    windows.look([a_run(iteration=1030, iteration_since=140.0, **told)])
    assert windows.fetch()[0].seconds == (2.0,)


# triggers


def nodes(**states: NodeState) -> dict[str, Node]:
    return {name: Node(name, states.get(name, NodeState.UP), "", 1, ("gpu",)) for name in NAMES}


def causes(triggers: Triggers, state: State) -> list[Cause]:
    return [trigger.cause for trigger in triggers.look(state, NOW)]


def test_what_was_so_at_the_start_is_no_event() -> None:
    state = a_state(a_run(), nodes=nodes(n2=NodeState.DOWN))
    state.incidents = {1: lost("n2")}
    triggers = Triggers()
    assert causes(triggers, state) == []
    assert causes(triggers, state) == []


def test_a_severe_incident_calls_for_a_plan_once() -> None:
    state, triggers = a_state(a_run()), Triggers()
    triggers.look(state, NOW)
    state.incidents = {1: replace(lost("n2"), severity=Severity.SEV2)}
    assert causes(triggers, state) == []
    state.incidents = {1: lost("n2")}
    run = state.runs[7]
    run.agents["n2"] = replace(run.agents["n2"], last_heard=NOW - 60)
    run.agents["n3"] = replace(run.agents["n3"], connected=False, closed_at=NOW)
    expected = Trigger(Cause.SEV1, "n2 is silent", 7, 1, "n2", 1, avoided=("n2",))
    assert triggers.look(state, NOW) == [expected]
    assert causes(triggers, state) == []


def test_runs_that_start_and_end_call_for_a_plan() -> None:
    state, triggers = a_state(), Triggers()
    triggers.look(state, NOW)
    state.runs = {7: a_run(state=RunState.STARTING)}
    assert causes(triggers, state) == []
    state.runs = {7: a_run()}
    assert causes(triggers, state) == [Cause.RUN_STARTED]
    state.runs = {7: a_run(state=RunState.HEALING)}
    assert causes(triggers, state) == []
    state.runs = {7: a_run()}
    assert causes(triggers, state) == []
    state.runs = {7: a_run(state=RunState.COMPLETED)}
    assert causes(triggers, state) == [Cause.RUN_ENDED]
    assert causes(triggers, state) == []


def test_a_requeued_run_starts_again() -> None:
    state, triggers = a_state(a_run()), Triggers()
    triggers.look(state, NOW)
    state.runs = {7: a_run(state=RunState.REQUEUED)}
    assert causes(triggers, state) == []
    state.runs = {7: a_run()}
    assert causes(triggers, state) == [Cause.RUN_STARTED]


def test_a_weight_that_changes_calls_for_a_plan() -> None:
    state, triggers = a_state(a_run()), Triggers()
    triggers.look(state, NOW)
    state.runs = {7: a_run(weight=3.0)}
    (found,) = triggers.look(state, NOW)
    assert found.what == "weight of run 7 changed from 1 to 3"
    state.runs = {7: a_run(weight=3.0, floor_nodes=2)}
    (found,) = triggers.look(state, NOW)
    assert found.what == "floor of run 7 changed from 0 to 2 nodes"


def test_nodes_that_return_or_are_drained_call_for_a_plan() -> None:
    state, triggers = a_state(nodes=nodes()), Triggers()
    triggers.look(state, NOW)
    state.nodes = nodes(n2=NodeState.DRAINED, n3=NodeState.DOWN)
    assert causes(triggers, state) == [Cause.NODE_DRAINED]
    state.nodes = nodes(n3=NodeState.DRAINED)
    assert causes(triggers, state) == [Cause.NODE_RETURNED]
    state.nodes = nodes(n3=NodeState.UNKNOWN)
    assert causes(triggers, state) == []


# learning


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with closing(open_store(f"sqlite:///{tmp_path}/unicron.db")) as store:
        yield store


@pytest.fixture
def learning(tmp_path: Path, store: SqlStore) -> Iterator[Learning]:
    with closing(Queries(f"sqlite:///{tmp_path}/unicron.db")) as queries:
        yield Learning(queries)


def facts(reply: Reply, kind: str) -> list[Any]:
    return [json.loads(fact.doc) for fact in reply.facts if fact.kind == kind]


def save(store: SqlStore, *runs: Run, **more: Any) -> None:
    store.save(Changes(runs=runs, snapshot=Snapshot(NOW, nodes(), {}), **more))


def test_a_run_is_learned_once_and_again_when_something_was_measured(
    store: SqlStore, learning: Learning
) -> None:
    save(store, a_run())
    (prior,) = facts(learning.answer(Ask(NOW)), "throughput")
    assert prior["measured"] == []
    assert facts(learning.answer(Ask(NOW + 60)), "throughput") == []
    store.learn(Knowledge(observations=(Observation(7, 3, 3, NOW, (2.0, 2.1), 30),)))
    (found,) = facts(learning.answer(Ask(NOW + 120)), "throughput")
    assert found["unit"] == "FLOP/s"
    assert [m["workers"] for m in found["measured"]] == [3]
    at_three = next(e for e in found["estimates"] if e["workers"] == 3)
    assert at_three["measured"] and at_three["seconds"] == pytest.approx(2.05, rel=0.03)


def test_time_counts_as_up_only_while_it_is_watched(store: SqlStore, learning: Learning) -> None:
    save(store, a_run())
    learning.answer(Ask(NOW))
    learning.answer(Ask(NOW + 100))
    (up,) = facts(learning.answer(Ask(NOW + 20_000)), "uptime")  # nobody looked meanwhile
    assert up["n1"] == [NOW, pytest.approx(100 / 86400)]


def test_uptime_survives_the_worker(store: SqlStore, learning: Learning) -> None:
    save(store, a_run())
    old = Learned("uptime", "cluster", NOW, json.dumps({"n1": [5.0, 12.5]}))
    store.learn(Knowledge(learned=(old,)))
    (found,) = facts(learning.answer(Ask(NOW)), "reliability")
    assert found["pools"][0]["node"]["days"] == pytest.approx(12.5)


def test_lost_nodes_count_and_false_alarms_do_not(store: SqlStore, learning: Learning) -> None:
    over = {"state": IncidentState.RESOLVED}
    told = (lost("n1", 1, **over), lost("n2", 2, **over))
    told = (told[0], replace(told[1], opened_at=NOW + 9000))
    wrong = Review(2, "silence", Proof.REFUTED, NOW)
    save(store, a_run(), incidents=told, reviews=(wrong,))
    (found,) = facts(learning.answer(Ask(NOW + 10_000)), "reliability")
    assert [node["node"] for node in found["nodes"]] == ["n1"]
    assert found["pools"][0]["node"]["failures"] == 1


def test_heals_teach_how_long_a_change_takes(store: SqlStore, learning: Learning) -> None:
    healed = lost("n1", state=IncidentState.RESOLVED, first_signal_at=NOW - 7.0, closed_at=NOW)
    decision = Decision(NOW, 1, 7, 1, "shrink", "n1 is lost", True)
    save(store, a_run(), incidents=(healed,), decisions=(decision,))
    (found,) = facts(learning.answer(Ask(NOW)), "reliability")
    shrink = next(t for t in found["transitions"] if t["kind"] == "shrink")
    assert shrink["seen"] == 1 and shrink["seconds"] < 60


def test_a_lost_node_brings_a_plan_with_alternatives(store: SqlStore, learning: Learning) -> None:
    save(store, a_run(), incidents=(lost("n2"),))
    trigger = Trigger(Cause.SEV1, "n2 is silent", 7, 1, "n2", 1)
    plan = learning.answer(Ask(NOW, (trigger,))).plan
    assert plan is not None
    assert (plan.choice, plan.reason[:33]) == ("shrink", "run 7 shrinks from 3 to 2 nodes (")
    doc = json.loads(plan.doc)
    assert doc["today"]["runs"][0]["size"] == 2
    assert learning.answer(Ask(NOW)).plan is None


HEALED = {
    "state": IncidentState.RESOLVED, "first_signal_at": NOW - 1.0, "closed_at": NOW + 20.0,
}  # fmt: skip


def planned_and_healed(store: SqlStore, learning: Learning) -> None:
    """n2 is lost, the planner proposes to shrink, and so it is done in 21 s."""
    save(store, a_run(), incidents=(lost("n2"),))
    store.learn(Knowledge(observations=(Observation(7, 3, 3, NOW - 60, (2.0, 2.0), 30),)))
    trigger = Trigger(Cause.SEV1, "n2 is silent", 7, 1, "n2", 1)
    plan = learning.answer(Ask(NOW, (trigger,))).plan
    assert plan is not None
    store.learn(recorded(plan, [trigger], (), NOW + 1))
    decision = Decision(NOW, 1, 7, 1, "shrink", "n2 is lost", True)
    save(store, a_run(), incidents=(lost("n2", **HEALED),), decisions=(decision,))


def test_a_heals_price_is_measured_beside_the_one_that_its_plan_predicted(
    store: SqlStore, learning: Learning
) -> None:
    planned_and_healed(store, learning)
    assert learning.answer(Ask(NOW + 60)).lines == (), "no iterations since"
    store.learn(Knowledge(observations=(Observation(7, 2, 2, NOW + 90, (2.5,), 12),)))
    reply = learning.answer(Ask(NOW + 120))
    (line,) = reply.lines
    assert (line.run_id, line.incident_id, line.node) == (7, 1, "n2")
    assert "the plan said shrink in 6" in line.text
    assert line.text.endswith(
        "measured: shrink in 21 s, price 1.05e+16 FLOP, 80% of the FLOP/s kept"
    )
    ((told,),) = facts(reply, "heals")
    assert (told["planned"], told["done"], told["measured_seconds"]) == ("shrink", "shrink", 21.0)
    assert told["measured_kept"] == pytest.approx(2.0 / 2.5)
    assert told["predicted_kept"] == pytest.approx(0.68, abs=0.05)
    at_three = 1e15 / 2.0  # FLOP/s
    assert told["measured_price"] == pytest.approx(21 * at_three, rel=0.02)
    assert learning.answer(Ask(NOW + 180)).lines == ()


def test_a_heal_that_was_told_of_is_not_told_of_again_by_another_worker(
    tmp_path: Path, store: SqlStore, learning: Learning
) -> None:
    planned_and_healed(store, learning)
    store.learn(Knowledge(observations=(Observation(7, 2, 2, NOW + 90, (2.5,), 12),)))
    (fact,) = [f for f in learning.answer(Ask(NOW + 120)).facts if f.kind == "heals"]
    store.learn(Knowledge(learned=(Learned(fact.kind, fact.subject, NOW, fact.doc),)))
    with closing(Queries(f"sqlite:///{tmp_path}/unicron.db")) as queries:
        assert Learning(queries).answer(Ask(NOW + 180)).lines == ()


def test_a_heal_after_which_nothing_was_measured_is_told_of_without(
    store: SqlStore, learning: Learning
) -> None:
    planned_and_healed(store, learning)
    (line,) = learning.answer(Ask(NOW + 2000)).lines
    assert line.text.endswith("FLOP/s after it not known")


def test_a_heal_without_a_plan_has_nothing_to_be_compared_with(
    store: SqlStore, learning: Learning
) -> None:
    decision = Decision(NOW, 1, 7, 1, "shrink", "n2 is lost", True)
    save(store, a_run(), incidents=(lost("n2", **HEALED),), decisions=(decision,))
    assert learning.answer(Ask(NOW + 2000)).lines == ()


def foreseen(learning: Learning, at: float, *triggers: Trigger) -> str:
    plan = learning.answer(Ask(at, triggers)).plan
    assert plan is not None
    told: str = json.loads(plan.doc)["foreseen"]
    return told


def test_the_plan_for_the_next_event_is_ready_before_it_happens(
    store: SqlStore, learning: Learning
) -> None:
    save(store, a_run())
    assert foreseen(learning, NOW, STARTED) == "no plans were ready"
    learning.prepare()
    save(store, a_run(), incidents=(lost("n2"),))
    told = foreseen(learning, NOW + 60, Trigger(Cause.SEV1, "n2 is silent", 7, 1, "n2", 1))
    assert told == "run 7 loses a node: a plan was ready for 60 s, the same division"


def test_what_no_single_event_leaves_was_not_foreseen_and_old_plans_are_thrown_away(
    store: SqlStore, learning: Learning
) -> None:
    save(store, a_run())
    foreseen(learning, NOW, STARTED)
    learning.prepare()
    save(store, a_run(), incidents=(lost("n2"), lost("n3", 2)))
    told = foreseen(learning, NOW + 60, Trigger(Cause.SEV1, "n2 is silent", 7, 1, "n2", 1))
    assert re.fullmatch("by none of the [0-9]+ plans that were ready", told)
    learning.prepare()
    save(store, a_run(), incidents=(lost("n2"), replace(lost("n3", 2), **HEALED)))
    trigger = Trigger(Cause.NODE_RETURNED, "n3 is back", node="n3")
    assert foreseen(learning, NOW + 90, trigger).startswith("by none"), "though the first had it"


# stirs


def test_what_may_make_a_plan_possible_calls_for_another_try_once() -> None:
    stirs, run = Stirs(), a_run(no_growth_until=NOW + 10)
    state = a_state(run)
    assert not stirs.look(state, NOW), "what was so at the start"
    assert not stirs.look(state, NOW + 9)
    assert stirs.look(state, NOW + 11), "it may grow again"
    held = Allocation(9, "x", "v", 2, "", "gpu", JobState.RUNNING, ("n9",), "n9", 8)
    for change in (
        {"runs": {7: replace(run, generation=2)}},
        {"allocations": {9: held}},
        {"allocations": {}},
        {"mode": Mode.OBSERVE},
    ):
        for name, value in change.items():
            setattr(state, name, value)
        assert stirs.look(state, NOW + 12), change
        assert not stirs.look(state, NOW + 12)


# the process
