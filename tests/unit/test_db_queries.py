"""What the API reads: pages, histories, stories; and that it can only read."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from db.queries import Act, Queries, SeenAllocation, StoryLine
from db.schema import REVISIONS
from db.store import SqlStore, open_store
from tests.contract.test_store_contract import (
    ALLOCATION,
    DECISION,
    DRAIN,
    INCIDENT,
    KEY,
    NODE,
    RUN,
    STOP,
    snapshot,
)
from unicrond.errors import BadInput, StoreUnavailable
from unicrond.model.cluster import JobState, NodeState, Snapshot
from unicrond.model.decision import Outcome, OutcomeState
from unicrond.model.incident import IncidentState
from unicrond.model.run import RunState
from unicrond.ports import Changes, JournalEntry


def test_a_job_is_followed_from_submission_to_its_end(store: SqlStore, queries: Queries) -> None:
    pending = replace(ALLOCATION, state=JobState.PENDING, nodes=(), start_time=0.0)
    store.save(Changes(snapshot=snapshot(1.0, pending)))
    store.save(Changes(snapshot=snapshot(2.0, ALLOCATION)))
    store.save(Changes(snapshot=snapshot(3.0, ALLOCATION)))
    assert queries.allocations().items == (SeenAllocation(ALLOCATION, False, 2.0, None),)
    ended = replace(ALLOCATION, state=JobState.COMPLETED, end_time=4.0)
    store.save(Changes(snapshot=snapshot(4.0, ended)))
    store.save(Changes(snapshot=snapshot(5.0)))
    store.save(Changes(snapshot=snapshot(6.0)))
    assert queries.allocations().items == ()
    assert queries.allocations(current=False).items == (SeenAllocation(ended, False, 4.0, 5.0),)


def test_a_job_that_is_submitted_anew_has_a_history_for_each_time(
    store: SqlStore, queries: Queries
) -> None:
    again = replace(ALLOCATION, submit_time=50.0, restarts=1)
    store.save(Changes(snapshot=snapshot(1.0, ALLOCATION)))
    store.save(Changes(snapshot=snapshot(2.0, again)))
    assert queries.allocations().items == (SeenAllocation(again, False, 2.0, None),)
    history = queries.allocations(current=False).items
    assert [(seen.allocation, seen.gone_at) for seen in history] == [(again, None), (ALLOCATION, 2)]


def test_the_next_daemon_goes_on_with_the_same_rows(
    url: str, store: SqlStore, queries: Queries
) -> None:
    store.save(Changes(snapshot=snapshot(1.0, ALLOCATION)))
    with closing(open_store(url)) as next_store:
        next_store.save(Changes(snapshot=snapshot(2.0, ALLOCATION)))
        next_store.save(Changes(snapshot=snapshot(3.0, ALLOCATION, nodes=())))
    assert queries.allocations(current=False).items == (
        SeenAllocation(ALLOCATION, False, 1.0, None),
    )
    assert queries.nodes().items == ()


def test_a_save_that_failed_is_made_good_by_the_next(
    store: SqlStore, queries: Queries, tmp_path: Path
) -> None:
    database = tmp_path / "unicron.db"
    database.rename(tmp_path / "away")
    with pytest.raises(StoreUnavailable):
        store.save(Changes(snapshot=snapshot(1.0, ALLOCATION)))
    (tmp_path / "away").rename(database)
    store.save(Changes(snapshot=snapshot(2.0, ALLOCATION)))
    assert queries.allocations().items == (SeenAllocation(ALLOCATION, False, 2.0, None),)


def test_what_is_unknown_is_not_gone(store: SqlStore, queries: Queries) -> None:
    store.save(Changes(snapshot=snapshot(1.0, ALLOCATION)))
    store.save(Changes(snapshot=Snapshot(2.0, None, None, "no answer")))
    assert len(queries.allocations().items) == len(queries.nodes().items) == 1


def test_an_allocation_with_a_run_is_managed(store: SqlStore, queries: Queries) -> None:
    other = replace(ALLOCATION, job_id=1, user="bob")
    store.save(Changes(snapshot=snapshot(1.0, ALLOCATION, other), runs=(RUN,)))
    found = {seen.allocation.job_id: seen.managed for seen in queries.allocations().items}
    assert found == {4711: True, 1: False}
    assert [seen.allocation.user for seen in queries.allocations(user="bob").items] == ["bob"]


def test_nodes_change_and_go(store: SqlStore, queries: Queries) -> None:
    down = replace(NODE, state=NodeState.DOWN, raw_state="DOWN*")
    other = replace(NODE, name="n2")
    store.save(Changes(snapshot=snapshot(1.0, nodes=(NODE, other))))
    store.save(Changes(snapshot=snapshot(2.0, nodes=(down, other))))
    assert [(s.node, s.changed_at) for s in queries.nodes().items] == [(down, 2.0), (other, 1.0)]
    store.save(Changes(snapshot=snapshot(3.0, nodes=(down,))))
    assert [s.node for s in queries.nodes().items] == [down]
    assert queries.node("n1") == down
    assert queries.node("n2") is None


def test_pages_neither_repeat_nor_hide(store: SqlStore, queries: Queries) -> None:
    store.save(Changes(runs=tuple(replace(RUN, run_id=n) for n in range(1, 6))))
    first = queries.runs(limit=2)
    store.save(Changes(runs=(replace(RUN, run_id=6),)))
    second = queries.runs(limit=2, after=first.next or "")
    third = queries.runs(limit=2, after=second.next or "")
    shown = [run.run_id for page in (first, second, third) for run in page.items]
    assert shown == [5, 4, 3, 2, 1]
    assert third.next is None


def test_a_page_of_nodes_goes_by_name(store: SqlStore, queries: Queries) -> None:
    store.save(Changes(snapshot=snapshot(1.0, nodes=tuple(replace(NODE, name=n) for n in "cab"))))
    first = queries.nodes(limit=2)
    assert [seen.node.name for seen in first.items] == ["a", "b"]
    assert [seen.node.name for seen in queries.nodes(after=first.next or "").items] == ["c"]


@pytest.mark.parametrize("after", ["x", "-1", "1.5", "9" * 40, "²"])
def test_a_place_that_is_none_is_refused(queries: Queries, after: str) -> None:
    with pytest.raises(BadInput, match="after: not a place in this list"):
        queries.runs(after=after)


def test_runs_are_found_by_user_and_by_being_alive(store: SqlStore, queries: Queries) -> None:
    bobs = replace(RUN, run_id=1, user="bob")
    ended = replace(RUN, run_id=2, state=RunState.FAILED)
    store.save(Changes(runs=(RUN, bobs, ended)))
    assert queries.runs(user="bob").items == (bobs,)
    assert queries.runs(live=True).items == (RUN, bobs)
    assert queries.run(2) == ended
    assert queries.run(3) is None


def test_incidents_are_found_by_run_and_by_being_open(store: SqlStore, queries: Queries) -> None:
    closed = replace(INCIDENT, incident_id=2, state=IncidentState.RESOLVED)
    other = replace(INCIDENT, incident_id=3, run_id=None)
    store.save(Changes(incidents=(INCIDENT, closed, other)))
    assert queries.incidents().items == (other, closed, INCIDENT)
    assert queries.incidents(open_=True).items == (other, INCIDENT)
    assert queries.incidents(run_id=4711).items == (closed, INCIDENT)
    assert queries.incident(2) == closed
    assert queries.incident(9) is None


def test_acts_of_an_incident_show_how_they_ended(store: SqlStore, queries: Queries) -> None:
    outcome = Outcome(KEY, 12.0, OutcomeState.DONE, data={"port": 29500})
    store.save(Changes(intents=(STOP, DRAIN), outcomes=(outcome,)))
    assert queries.acts(1) == (Act(STOP, outcome), Act(DRAIN, None))


def test_a_story_is_told_in_order_with_its_decisions(store: SqlStore, queries: Queries) -> None:
    silent = JournalEntry(10.0, "signal", "n2 is silent", 4711, 1, "n2", 3, {"age": 3})
    decided = JournalEntry(11.0, "decision", "n2 is lost", 4711, 1)
    other = JournalEntry(12.0, "note", "another run", 4712)
    store.save(Changes(journal=(silent, decided, other), decisions=(DECISION,)))
    told = (StoryLine(silent), StoryLine(decided, DECISION))
    assert queries.story_of_run(4711).items == told
    assert queries.story_of_incident(1).items == told
    assert queries.story_of_node("n2").items == told[:1]


def test_a_long_story_begins_with_its_end(store: SqlStore, queries: Queries) -> None:
    lines = tuple(JournalEntry(float(n), "note", str(n), 4711) for n in range(5))
    store.save(Changes(journal=lines))
    last = queries.story_of_run(4711, limit=3)
    assert [line.entry.text for line in last.items] == ["2", "3", "4"]
    before = queries.story_of_run(4711, after=last.next or "", limit=3)
    assert [line.entry.text for line in before.items] == ["0", "1"]
    assert before.next is None


def test_meta_is_put_by_the_loop_and_read_by_the_api(store: SqlStore, queries: Queries) -> None:
    assert queries.meta("heartbeat") is None
    store.put_meta("heartbeat", {"at": 1.0, "agents": 3})
    store.put_meta("heartbeat", {"at": 2.0, "agents": 4})
    assert queries.meta("heartbeat") == {"at": 2.0, "agents": 4}


def test_the_reader_cannot_write(queries: Queries) -> None:
    with queries._engine.connect() as connection, pytest.raises(Exception, match="readonly"):
        connection.execute(text("DELETE FROM runs"))


def test_the_reader_makes_no_database(tmp_path: Path) -> None:
    queries = Queries(f"sqlite:///{tmp_path}/none.db")
    with closing(queries), pytest.raises(StoreUnavailable, match="unable to open database file"):
        queries.check()
    assert list(tmp_path.iterdir()) == []


def test_the_reader_says_when_the_tables_are_not_its_own(
    url: str, store: SqlStore, queries: Queries
) -> None:
    queries.check()
    with store._engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0999'"))
    with pytest.raises(StoreUnavailable, match=f"0999, this program needs {REVISIONS[-1]}"):
        queries.check()


def test_a_damaged_row_is_named(store: SqlStore, queries: Queries) -> None:
    store.save(Changes(runs=(RUN,)))
    with store._engine.begin() as connection:
        connection.execute(text("""UPDATE runs SET doc = '{"run_id": 4711}'"""))
    for read in (lambda: queries.run(4711), store.load):
        with pytest.raises(StoreUnavailable, match=r"cannot be read: Run: name, user"):
            read()
