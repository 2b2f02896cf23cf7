"""What every Store promises. Over MemoryStore and every database there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from db.memory import MemoryStore
from db.store import SqlStore, open_store
from tests.contract.databases import DATABASES, emptied
from unicrond.model.cluster import Allocation, JobState, Node, NodeState, Snapshot
from unicrond.model.decision import (
    Action,
    ActionKey,
    ActionKind,
    Alternative,
    Decision,
    Mode,
    Outcome,
    OutcomeState,
)
from unicrond.model.incident import Incident, IncidentState, Proof, Review, Scope, Severity
from unicrond.model.run import (
    AgentView,
    Assignment,
    Healing,
    HealStep,
    Loss,
    LossState,
    Phase,
    Run,
    RunState,
    Slot,
)
from unicrond.ports import Changes, JournalEntry, Saved, Store

Reopen = Callable[[], Store]


@pytest.fixture(params=["memory", *DATABASES])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopen]:
    """Each call is a new daemon that finds what the one before it saved."""
    if request.param == "memory":
        memory = MemoryStore()
        yield lambda: memory
        return
    url = emptied(request.param, tmp_path)
    opened: list[SqlStore] = []

    def open_again() -> Store:
        opened.append(open_store(url))
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()


ASSIGNMENT = Assignment(3, "o-1", (Slot(0, "m-1", "n1", 0), Slot(1, "m-2", "n2", 0)))
RUN = Run(
    run_id=4711,
    name="llama",
    user="alice",
    uid=1001,
    weight=2.0,
    min_nodes=2,
    max_nodes=4,
    ranks_per_node=1,
    nodes=("n1", "n2"),
    batch_host="n1",
    restarts=0,
    state=RunState.HEALING,
    mode=Mode.ACTIVE,
    generation=3,
    assignment=ASSIGNMENT,
    agents={"n1": AgentView("n1", "a-1", True, 9.5, Phase.BROKEN, 3, peers_heard={"n2": 9.0})},
    losses=(Loss("n2", 1, 10.0, 100.0, LossState.CONFIRMED),),
    early_exits=((1, "n2"),),
    failures=(1.0, 2.5),
    healing=Healing(1, HealStep.STOP, 10.0, 25.0, ("n1",), lost=("n2",), ports={"n1": 29500}),
)
INCIDENT = Incident(1, 10.0, "lost_node", Severity.SEV1, Scope.NODE, 4711, 3, "n2", None)
KEY = ActionKey(1, 3, 0)
STOP = Action(KEY, ActionKind.STOP_RANKS, 4711, "n1", {"generation": 3})
DRAIN = Action(ActionKey(1, 3, 7), ActionKind.DRAIN, 4711, "n2", {"reason": "unicron: lost_node"})
DECISION = Decision(
    11.0, 1, 4711, 3, "shrink", "n2 is lost", True, (Alternative("wait", False, "5 h idle"),)
)
NODE = Node("n1", NodeState.UP, "IDLE", 8, ("gpu",))
ALLOCATION = Allocation(
    4711, "llama", "alice", 1001, "ml", "gpu", JobState.RUNNING, ("n1", "n2"), "n1", 16, 5.0, 6.0
)


def snapshot(at: float, *allocations: Allocation, nodes: tuple[Node, ...] = (NODE,)) -> Snapshot:
    return Snapshot(at, {n.name: n for n in nodes}, {a.job_id: a for a in allocations})


def test_a_new_store_is_empty(reopen: Reopen) -> None:
    assert reopen().load() == Saved()


def test_what_was_saved_is_there_for_the_next_daemon(reopen: Reopen) -> None:
    reopen().save(
        Changes(
            runs=(RUN,),
            incidents=(INCIDENT,),
            decisions=(DECISION,),
            intents=(STOP, DRAIN),
            journal=(JournalEntry(10.0, "signal", "n2 is silent", 4711, 1, "n2", 3, {"x": 1}),),
            snapshot=snapshot(9.0, ALLOCATION),
            mode=Mode.ACTIVE,
        )
    )
    assert reopen().load() == Saved(
        runs=(RUN,),
        incidents=(INCIDENT,),
        unfinished=(STOP, DRAIN),
        next_incident_id=2,
        next_ordinal=8,
        mode=Mode.ACTIVE,
    )


def test_the_last_save_of_a_value_wins(reopen: Reopen) -> None:
    store = reopen()
    later = replace(RUN, generation=4, healing=None, losses=(), state=RunState.RUNNING)
    store.save(Changes(runs=(RUN,), mode=Mode.ACTIVE))
    store.save(Changes(runs=(later,), mode=Mode.PAUSED))
    store.save(Changes(incidents=(INCIDENT,)))
    assert reopen().load().runs == (later,)
    assert reopen().load().mode is Mode.PAUSED


def test_a_run_that_ended_is_not_loaded_again(reopen: Reopen) -> None:
    store = reopen()
    other = replace(RUN, run_id=4712)
    store.save(Changes(runs=(RUN, other)))
    store.save(Changes(runs=(replace(RUN, state=RunState.COMPLETED),)))
    assert reopen().load().runs == (other,)


@pytest.mark.parametrize("ended", [IncidentState.RESOLVED, IncidentState.CLOSED])
def test_the_id_of_an_incident_that_ended_is_not_given_again(
    reopen: Reopen, ended: IncidentState
) -> None:
    reopen().save(Changes(incidents=(replace(INCIDENT, incident_id=41, state=ended),)))
    assert reopen().load() == Saved(next_incident_id=42)


def test_an_incident_in_the_hands_of_a_person_is_still_open(reopen: Reopen) -> None:
    incident = replace(INCIDENT, state=IncidentState.PERSON)
    reopen().save(Changes(incidents=(incident,)))
    assert reopen().load().incidents == (incident,)


@pytest.mark.parametrize("state", list(OutcomeState))
def test_an_outcome_ends_its_intent(reopen: Reopen, state: OutcomeState) -> None:
    store = reopen()
    store.save(Changes(intents=(STOP, DRAIN)))
    store.save(Changes(outcomes=(Outcome(KEY, 12.0, state, "gone", {"port": 29500}),)))
    saved = reopen().load()
    assert saved.unfinished == (DRAIN,)
    assert saved.next_ordinal == 8


def test_an_intent_and_its_outcome_may_come_in_one_save(reopen: Reopen) -> None:
    reopen().save(
        Changes(intents=(STOP,), outcomes=(Outcome(KEY, 12.0, OutcomeState.REFUSED, "moved"),))
    )
    assert reopen().load().unfinished == ()


def test_an_intent_saved_again_keeps_its_outcome(reopen: Reopen) -> None:
    store = reopen()
    store.save(Changes(intents=(STOP,)))
    store.save(Changes(outcomes=(Outcome(KEY, 12.0, OutcomeState.DONE),)))
    store.save(Changes(intents=(STOP,), again=(STOP,)))
    assert reopen().load().unfinished == ()


def test_an_outcome_of_an_unknown_intent_is_left_out(reopen: Reopen) -> None:
    reopen().save(Changes(outcomes=(Outcome(ActionKey(9, 9, 9), 12.0, OutcomeState.DONE),)))
    assert reopen().load() == Saved()


def test_our_drains_of_the_last_day_are_counted_again(reopen: Reopen) -> None:
    store = reopen()
    old, tried = replace(DRAIN, key=ActionKey(1, 3, 8)), replace(DRAIN, key=ActionKey(1, 3, 9))
    store.save(Changes(intents=(STOP, DRAIN, old, tried)))
    store.save(
        Changes(
            outcomes=(
                Outcome(KEY, 109000.0, OutcomeState.DONE),
                Outcome(old.key, 1000.0, OutcomeState.DONE),
                Outcome(DRAIN.key, 108000.0, OutcomeState.DONE),
                Outcome(tried.key, 108001.0, OutcomeState.REFUSED, "a person drained it"),
            )
        )
    )
    assert reopen().load().drains == ((108000.0, "n2"),)


def test_the_last_review_of_an_incident_replaces_the_one_before(reopen: Reopen) -> None:
    store = reopen()
    first = Review(12, "hang.overdue", Proof.UNDECIDED, 10.0, "alice")
    person = replace(first, proof=Proof.REFUTED, by="alice", reason="it was an evaluation")
    store.save(Changes(reviews=(first, replace(first, incident_id=7))))
    store.save(Changes(reviews=(person,)))
    assert reopen().load().reviews == (replace(first, incident_id=7), person)


def test_what_the_caller_changes_later_is_not_saved(reopen: Reopen) -> None:
    run = replace(RUN, agents={})
    store = reopen()
    store.save(Changes(runs=(run,)))
    run.agents["n9"] = AgentView("n9", "a-9", True, 1.0)
    assert store.load().runs[0].agents == {}


def test_words_that_no_database_likes_are_stored_all_the_same(reopen: Reopen) -> None:
    words = "NUL \0, half a pair \ud800, \N{PILE OF POO}, and " + "long " * 50_000
    entry = JournalEntry(1.0, "signal", words, node="n" * 300, data={"stderr": words})
    store = reopen()
    store.save(Changes(journal=(entry,), runs=(replace(RUN, end_reason=words, weight=1e308),)))
    assert reopen().load().runs[0].end_reason == words


def test_numbers_beyond_json_come_back(reopen: Reopen) -> None:
    run = replace(RUN, weight=float("inf"))
    reopen().save(Changes(runs=(run,)))
    assert reopen().load().runs == (run,)


def test_a_snapshot_may_know_nothing(reopen: Reopen) -> None:
    store = reopen()
    store.save(Changes(snapshot=Snapshot(1.0, None, None, "slurmctld does not answer")))
    store.save(Changes(snapshot=snapshot(2.0, ALLOCATION)))
    store.save(Changes(snapshot=Snapshot(3.0, None, None, "slurmctld does not answer")))
    assert reopen().load() == Saved()


def test_snapshots_come_and_go(reopen: Reopen) -> None:
    store = reopen()
    other = replace(ALLOCATION, job_id=4712)
    store.save(Changes(snapshot=snapshot(1.0, ALLOCATION, nodes=(NODE, replace(NODE, name="n2")))))
    store.save(Changes(snapshot=snapshot(2.0, replace(ALLOCATION, gpus=8), other)))
    store.save(Changes(snapshot=snapshot(3.0, other)))
    reopen().save(Changes(snapshot=snapshot(4.0, replace(other, submit_time=99.0), ALLOCATION)))
    assert reopen().load() == Saved()
