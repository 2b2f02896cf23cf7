"""What is over and old is forgotten, whatever the database; nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select

from db import history, schema
from db.audit import Audited
from db.engine import writing_engine
from db.held import incidents_of, phases_of, spells_within
from db.history import DAY_SECONDS, ROWS_AT_ONCE, Forgetting
from db.newer import Newer
from db.queries import Queries
from db.store import SqlStore, open_store
from tests.contract.databases import DATABASES, emptied
from tests.contract.test_store_contract import (
    ALLOCATION,
    DECISION,
    INCIDENT,
    RUN,
    STOP,
    snapshot,
)
from unicrond.model.cluster import JobState
from unicrond.model.decision import ActionKey, Outcome, OutcomeState
from unicrond.model.incident import IncidentState, Proof, Review
from unicrond.model.run import Companion, RunState
from unicrond.ports import Changes, JournalEntry

OLD, CUTOFF, NEW = 1000.0, 2000.0, 3000.0
ENDED = replace(RUN, state=RunState.COMPLETED, ended_at=OLD)
CLOSED = replace(INCIDENT, state=IncidentState.RESOLVED, closed_at=OLD)


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return emptied(request.param, tmp_path)


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    with closing(open_store(url)) as store:
        yield store


def rows(url: str) -> dict[str, int]:
    engine = writing_engine(url)
    names = ("runs", "incidents", "decisions", "actions", "journal", "allocations")
    with engine.connect() as connection:
        tables = {name: schema.metadata.tables[name] for name in names}
        counts = {
            name: connection.scalar(select(func.count()).select_from(table)) or 0
            for name, table in tables.items()
        }
    engine.dispose()
    return {name: count for name, count in counts.items() if count}


def line(at: float, run_id: int | None = 4711, incident_id: int | None = 1) -> JournalEntry:
    return JournalEntry(at, "note", "x", run_id, incident_id)


def fill(store: SqlStore, **changed: object) -> None:
    """A run with one incident, long over."""
    done = Outcome(STOP.key, OLD, OutcomeState.DONE)
    changes = Changes(
        runs=(ENDED,),
        incidents=(CLOSED,),
        decisions=(DECISION,),
        intents=(STOP,),
        outcomes=(done,),
        journal=(line(OLD), line(OLD, incident_id=None), line(OLD, None, None)),
    )
    store.save(replace(changes, **changed))  # type: ignore[arg-type]


def forget_all(store: SqlStore) -> int:
    batches = 0
    while store.forget(CUTOFF):
        batches += 1
        assert batches < 1000
    return batches


def test_a_run_that_is_over_goes_with_its_whole_story(url: str, store: SqlStore) -> None:
    fill(store)
    store.save(Changes(snapshot=snapshot(OLD - 1, ALLOCATION)))
    store.save(Changes(snapshot=snapshot(OLD)))
    forget_all(store)
    assert rows(url) == {}


def test_numbers_of_what_was_forgotten_are_not_given_again(store: SqlStore) -> None:
    later = replace(STOP, key=ActionKey(1, 3, 41))
    done = Outcome(later.key, OLD, OutcomeState.DONE)
    fill(
        store,
        incidents=(replace(CLOSED, incident_id=17), CLOSED),
        intents=(later,),
        outcomes=(done,),
    )
    forget_all(store)
    saved = store.load()
    assert (saved.next_incident_id, saved.next_ordinal) == (18, 42)
    forget_all(store)
    assert store.load().next_incident_id == 18


def test_what_ended_since_stays(url: str, store: SqlStore) -> None:
    lines = (line(NEW), line(NEW, incident_id=None), line(NEW, None, None))
    newly = replace(ENDED, ended_at=NEW), replace(CLOSED, closed_at=NEW)
    fill(store, runs=newly[:1], incidents=newly[1:], journal=lines)
    before = rows(url)
    assert forget_all(store) == 0
    assert rows(url) == before


def test_nothing_of_a_run_that_lives_is_forgotten(url: str, store: SqlStore) -> None:
    fill(store, runs=(RUN,), journal=(line(OLD), line(OLD, incident_id=None)))
    store.save(Changes(snapshot=snapshot(OLD - 1, ALLOCATION)))
    store.save(Changes(snapshot=snapshot(OLD, replace(ALLOCATION, submit_time=99.0))))
    before = rows(url)
    assert before["allocations"] == 2
    assert forget_all(store) == 0
    assert rows(url) == before


@pytest.mark.parametrize("state", [IncidentState.OPEN, IncidentState.PERSON])
def test_nothing_of_an_open_incident_is_forgotten(
    url: str, store: SqlStore, state: IncidentState
) -> None:
    fill(store, incidents=(replace(INCIDENT, state=state),), journal=(line(OLD),))
    before = rows(url)
    assert forget_all(store) == 0
    assert rows(url) == before


def test_an_incident_waits_for_the_outcome_of_its_last_action(url: str, store: SqlStore) -> None:
    fill(store, outcomes=())
    forget_all(store)
    assert rows(url) == {"runs": 1, "incidents": 1, "decisions": 1, "actions": 1, "journal": 2}
    assert store.load().unfinished == (STOP,)
    store.save(Changes(outcomes=(Outcome(STOP.key, NEW, OutcomeState.MOOT),)))
    forget_all(store)
    assert rows(url) == {}


def test_a_run_that_lives_again_is_kept(url: str, store: SqlStore) -> None:
    fill(store)
    store.save(Changes(runs=(replace(RUN, state=RunState.STARTING),)))
    assert forget_all(store) == 1, "the line of no run"
    assert rows(url)["runs"] == 1


def test_of_many_rows_a_few_go_at_a_time(url: str, store: SqlStore) -> None:
    fill(store, journal=tuple(line(OLD) for _ in range(3 * ROWS_AT_ONCE)))
    assert store.forget(CUTOFF) == ROWS_AT_ONCE
    assert rows(url)["journal"] == 2 * ROWS_AT_ONCE
    assert rows(url)["incidents"] == 1, "it goes last"
    forget_all(store)
    assert rows(url) == {}


def test_old_lines_behind_newer_ones_of_others_are_found(url: str, store: SqlStore) -> None:
    for _ in range(3):
        store.save(Changes(journal=(line(NEW, 1, 2), line(OLD, None, None))))
    forget_all(store)
    assert rows(url) == {"journal": 3}


def test_what_the_planner_proposed_goes_unless_its_run_lives(url: str, store: SqlStore) -> None:
    proposed = replace(DECISION, incident_id=0)
    of_nobody = replace(proposed, run_id=None)
    later = replace(of_nobody, at=NEW)
    live = replace(RUN, run_id=4712)
    fill(store, runs=(ENDED, live), decisions=(proposed, replace(proposed, run_id=4712), of_nobody))
    store.save(Changes(decisions=(later,)))
    forget_all(store)
    assert rows(url) == {"runs": 1, "decisions": 2}


def test_batches_follow_one_another_and_then_there_is_a_rest() -> None:
    left, asked = [2, 1, 0, 1, 0], []

    def forget(before: float) -> int:
        asked.append(before)
        return left.pop(0)

    forgetting = Forgetting(forget, days=90, started=50.0)
    now = 100 * DAY_SECONDS
    for second in range(50, 650, 2):
        forgetting.go_on(second, now)
    assert asked == [], "the date may be wrong just after a start"
    for second in range(650, 700, 2):
        forgetting.go_on(second, now)
    assert asked == [10 * DAY_SECONDS] * 3
    forgetting.go_on(700 + 3600, now)
    assert len(asked) == 4


def test_with_no_days_nothing_is_forgotten() -> None:
    Forgetting(lambda _: pytest.fail("forgot"), days=0, started=0.0).go_on(1e6, 1e9)


def test_the_ledgers_rows_are_read_and_forgotten_with_the_rest(url: str, store: SqlStore) -> None:
    running = replace(ALLOCATION, state=JobState.RUNNING, start_time=OLD - 100)
    ended = replace(RUN, state=RunState.COMPLETED, ended_at=OLD, healing=None)
    grown = replace(RUN, companions=(Companion(1, 1, 0, 5.0, 9.0, job_id=4712),))
    store.save(Changes(runs=(grown,), snapshot=snapshot(OLD - 50, running), at=OLD - 40))
    store.save(Changes(runs=(ended,), incidents=(CLOSED,), snapshot=snapshot(OLD), at=OLD))
    store.audit(Audited(OLD, "ada", "admin", "unix", "uid 0", "mode paused", "cluster", "tests"))
    with closing(Queries(url)) as queries:
        newer = Newer(queries)
        assert [(h.began, h.ended) for h in spells_within(queries, 0, NEW)] == [(OLD - 100, OLD)]
        assert [p.state for p in phases_of(queries, [4711], NEW)[4711]] == ["healing", "completed"]
        assert [i.incident_id for i in incidents_of(queries, [4711], 0.0, NEW)[4711]] == [1]
        assert newer.count_nodes() == len(newer.nodes_since(float("-inf"))) == 1
        assert [row.read() for row in newer.runs_since(0.0)] == [ended]
        assert newer.allocations_since(float("-inf")) == newer.runs_since(99.0) == []
        assert [row.gone for row in newer.allocations_since(OLD - 10)] == [True]
        assert [entry.who for entry in queries.audit().items] == ["ada"]
        assert forget_all(store) > 0
        assert spells_within(queries, 0, NEW) == queries.audit().items == ()
        assert phases_of(queries, [4711, 4712], NEW) == {}


def test_reviews_go_with_their_incidents_but_the_newest_by_which_rules_are_believed(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_REVIEWS", 2)
    review = Review(1, "exit.code", Proof.CONFIRMED, OLD)
    numbers = (1, 2, 3, 4)
    kept = replace(CLOSED, incident_id=2, closed_at=NEW)
    fill(
        store,
        incidents=(kept, *(replace(CLOSED, incident_id=i) for i in numbers if i != 2)),
        reviews=tuple(replace(review, incident_id=i) for i in numbers),
    )
    forget_all(store)
    assert [one.incident_id for one in store.load().reviews] == [2, 3, 4]
