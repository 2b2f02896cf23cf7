"""The view of the present, and the events that tell of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from db.queries import Queries
from db.store import SqlStore
from tests.contract.test_store_contract import ALLOCATION, INCIDENT, NODE, RUN, snapshot
from unicrond.api import live
from unicrond.api.callers import Caller, Role, Sight
from unicrond.api.live import Lines, Listeners
from unicrond.api.view import STALE_SECONDS, WHOLE_SECONDS, Viewer
from unicrond.errors import StoreUnavailable
from unicrond.model.incident import IncidentState
from unicrond.model.run import RunState
from unicrond.ports import Changes, JournalEntry

ANYBODY = Sight(Caller("", None, Role.VIEWER, "loopback"))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def line(number: int, run_id: int | None = 4711) -> JournalEntry:
    return JournalEntry(float(number), "note", f"line {number}", run_id)


def test_only_what_changed_is_read_again(store: SqlStore, queries: Queries) -> None:
    viewer = Viewer(queries)
    others = tuple(replace(RUN, run_id=n) for n in range(1, 4))
    store.save(Changes(runs=others, snapshot=snapshot(1.0, ALLOCATION)))
    before = viewer.current()
    store.save(Changes(runs=(replace(others[0], iteration=99),)))
    after = viewer.current()
    same = [a is b for a, b in zip(before.runs.entries, after.runs.entries, strict=True)]
    assert same == [True, True, False]
    assert after.number == before.number + 1
    assert viewer.current() is not before
    assert viewer.current().number == after.number


def test_what_left_slurm_leaves_the_view(store: SqlStore, queries: Queries) -> None:
    viewer = Viewer(queries)
    store.save(Changes(snapshot=snapshot(1.0, ALLOCATION, nodes=(NODE, replace(NODE, name="n2")))))
    assert len(viewer.current().nodes.entries) == 2
    store.save(Changes(snapshot=snapshot(2.0, nodes=(NODE,))))
    view = viewer.current()
    assert [e.value.node.name for e in view.nodes.entries] == ["n1"]
    assert view.allocations.entries == ()


def test_a_job_becomes_managed_when_its_run_registers(store: SqlStore, queries: Queries) -> None:
    viewer = Viewer(queries)
    store.save(Changes(snapshot=snapshot(1.0, ALLOCATION)))
    assert not viewer.current().allocations.entries[0].value.managed
    store.save(Changes(runs=(RUN,)))
    assert viewer.current().allocations.entries[0].value.managed


def test_what_is_forgotten_leaves_with_the_next_whole_look(
    store: SqlStore, queries: Queries
) -> None:
    clock = Clock()
    viewer = Viewer(queries, clock)
    ended = replace(RUN, state=RunState.COMPLETED, ended_at=5.0)
    closed = replace(INCIDENT, state=IncidentState.CLOSED, closed_at=5.0)
    store.save(Changes(runs=(ended,), incidents=(closed,)))
    viewer.current()
    while store.forget(10.0):
        pass
    assert len(viewer.current().runs.entries) == 1
    clock.now += WHOLE_SECONDS
    assert viewer.current().runs.entries == viewer.current().incidents.entries == ()


def test_a_store_that_is_away_for_a_moment_is_not_noticed(
    store: SqlStore, queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    viewer = Viewer(queries, clock)
    store.save(Changes(runs=(RUN,)))
    viewer.start()
    viewer.stop()

    def away(query: object) -> None:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(queries, "rows", away)
    viewer.look()
    assert len(viewer.current().runs.entries) == 1
    clock.now += STALE_SECONDS + 1
    with pytest.raises(StoreUnavailable, match="no answer"):
        viewer.current()


async def first(events: AsyncIterator[bytes], count: int) -> list[str]:
    found: list[str] = []
    async for words in events:
        found.append(words.decode())
        if len(found) == count:
            break
    return found


def listening(queries: Queries) -> tuple[Viewer, Listeners]:
    viewer, listeners = Viewer(queries), Listeners(Lines(queries))
    viewer.after_look = listeners.after_look
    viewer.look()
    return viewer, listeners


def test_a_listener_hears_each_new_line_with_its_number(store: SqlStore, queries: Queries) -> None:
    store.save(Changes(journal=(line(1),)))
    viewer, listeners = listening(queries)

    async def story() -> list[str]:
        events = listeners.listen(ANYBODY, None)
        greeting = await first(events, 2)
        store.save(Changes(runs=(RUN,), journal=(line(2), line(3))))
        viewer.look()
        return greeting + await first(events, 3)

    found = asyncio.run(story())
    assert found[0] == "retry: 2000\n\n"
    assert found[1] == 'event: changed\ndata: {"view": 0}\n\n' or '"view": 1' in found[1]
    assert [words.split("\n")[:2] for words in found[2:4]] == [
        ["id: 2", "event: line"], ["id: 3", "event: line"],
    ]  # fmt: skip
    assert '"text": "line 2"' in found[2]
    assert found[4].startswith("event: changed")


def test_a_listener_that_comes_back_hears_what_it_missed(store: SqlStore, queries: Queries) -> None:
    store.save(Changes(journal=tuple(line(n) for n in range(1, 6))))
    _, listeners = listening(queries)
    found = asyncio.run(first(listeners.listen(ANYBODY, 3), 3))
    assert [words.split("\n")[0] for words in found[1:]] == ["id: 4", "id: 5"]


def test_a_listener_that_missed_too_much_is_told(
    store: SqlStore, queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST_LINES", 2)
    store.save(Changes(journal=tuple(line(n) for n in range(1, 6))))
    _, listeners = listening(queries)
    found = asyncio.run(first(listeners.listen(ANYBODY, 1), 4))
    assert found[1] == 'event: gap\ndata: {"next": 4}\n\n'
    assert [words.split("\n")[0] for words in found[2:]] == ["id: 4", "id: 5"]


def test_lines_of_others_runs_are_kept_from_strangers_where_jobs_are_private(
    store: SqlStore, queries: Queries
) -> None:
    bobs = replace(RUN, run_id=9, user="bob", uid=1002)
    store.save(Changes(runs=(RUN, bobs), journal=(line(1), line(2, 9), line(3, None))))
    _, listeners = listening(queries)
    bob = Sight(Caller("bob", 1002, Role.USER, "unix"), ("jobs",))
    found = asyncio.run(first(listeners.listen(bob, 0), 3))
    assert [words.split("\n")[0] for words in found[1:]] == ["id: 2", "event: changed"]


def test_a_listener_that_leaves_is_forgotten(store: SqlStore, queries: Queries) -> None:
    _, listeners = listening(queries)

    async def story() -> int:
        events = listeners.listen(ANYBODY, None)
        await first(events, 1)
        await events.aclose()  # type: ignore[attr-defined]
        return listeners.count

    assert asyncio.run(story()) == 0
