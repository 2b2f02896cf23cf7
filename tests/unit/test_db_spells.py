"""What the store notes of jobs on their nodes, of runs, and of commands."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select

from db import schema
from db.audit import Audited
from db.codec import loads
from db.engine import writing_engine
from db.held import phases_of
from db.queries import Queries
from db.spells import Held, Phase
from db.store import SqlStore, open_store
from tests.contract.test_store_contract import ALLOCATION, RUN, snapshot
from unicrond.errors import StoreUnavailable
from unicrond.model.cluster import JobState
from unicrond.model.pause import Pause, PauseScope
from unicrond.model.run import Companion, RunState
from unicrond.ports import Changes

RUNNING = replace(ALLOCATION, state=JobState.RUNNING, start_time=90.0, end_time=0.0)
SMALLER = replace(RUNNING, nodes=("n1",), gpus=8)


def spells(url: str) -> list[tuple[float, float | None, int]]:
    c = schema.spells.c
    engine = writing_engine(url)
    with engine.connect() as connection:
        rows = connection.execute(select(c.began, c.ended, c.doc).order_by(c.id)).all()
    engine.dispose()
    return [(row.began, row.ended, loads(Held, row.doc).gpus) for row in rows]


def phases(url: str) -> list[tuple[float, str, int]]:
    engine = writing_engine(url)
    with engine.connect() as connection:
        docs = connection.scalars(select(schema.phases.c.doc).order_by(schema.phases.c.id)).all()
    engine.dispose()
    found = [loads(Phase, doc) for doc in docs]
    return [(p.began, p.state, p.generation) for p in found]


def test_a_job_that_is_resized_has_a_spell_for_each_size(store: SqlStore, url: str) -> None:
    pending = replace(RUNNING, state=JobState.PENDING, nodes=(), start_time=0.0)
    for at, job in ((80.0, pending), (100.0, RUNNING), (102.0, RUNNING), (110.0, SMALLER)):
        store.save(Changes(snapshot=snapshot(at, job)))
    store.save(Changes(snapshot=snapshot(120.0)))
    assert spells(url) == [(90.0, 110.0, 16), (110.0, 120.0, 8)]


def test_a_spell_ends_when_slurm_says_that_the_job_did(store: SqlStore, url: str) -> None:
    store.save(Changes(snapshot=snapshot(100.0, RUNNING)))
    over = replace(RUNNING, state=JobState.COMPLETED, end_time=117.0)
    store.save(Changes(snapshot=snapshot(120.0, over)))
    assert spells(url) == [(90.0, 117.0, 16)]


def test_spells_go_on_over_a_restart(store: SqlStore, url: str) -> None:
    store.save(Changes(snapshot=snapshot(100.0, RUNNING)))
    again = open_store(url)
    again.save(Changes(snapshot=snapshot(200.0, RUNNING)))
    again.save(Changes(snapshot=snapshot(210.0, replace(RUNNING, start_time=205.0))))
    again.close()
    assert spells(url) == [(90.0, 205.0, 16), (205.0, None, 16)]


def test_a_run_has_a_phase_whenever_it_changed_and_only_then(store: SqlStore, url: str) -> None:
    running = replace(RUN, state=RunState.RUNNING, healing=None)
    store.save(Changes(runs=(running,), at=10.0))
    store.save(Changes(runs=(replace(running, iteration=running.iteration + 1),), at=11.0))
    store.save(Changes(runs=(replace(running, generation=9),), at=12.0))
    again = open_store(url)
    again.save(Changes(runs=(replace(running, generation=9, iteration=5),), at=13.0))
    again.save(Changes(runs=(replace(RUN, state=RunState.COMPLETED, generation=9),), at=14.0))
    again.close()
    assert phases(url) == [
        (10.0, "running", RUN.generation), (12.0, "running", 9), (14.0, "completed", 9),
    ]  # fmt: skip


def test_each_job_of_a_run_has_phases(store: SqlStore, queries: Queries) -> None:
    companions = (Companion(1, 1, 0, 5.0, 9.0), Companion(1, 1, 0, 5.0, 9.0, job_id=4712))
    store.save(Changes(runs=(replace(RUN, companions=companions),), at=10.0))
    found = [p for told in phases_of(queries, [4711, 4712], 100.0).values() for p in told]
    assert [(p.run_id, p.base) for p in found] == [(4711, 0), (4712, 4711)]


def test_a_phase_whose_save_failed_is_written_by_the_next(store: SqlStore, url: str) -> None:
    store.save(Changes(runs=(RUN,), at=10.0))
    changed = replace(RUN, generation=RUN.generation + 1)
    unstorable = snapshot(11.0, replace(RUNNING, gpus=2**80))
    with pytest.raises((StoreUnavailable, OverflowError)):
        store.save(Changes(runs=(changed,), at=11.0, snapshot=unstorable))
    store.save(Changes(runs=(changed,), at=12.0))
    assert [began for began, _, _ in phases(url)] == [10.0, 12.0]


def test_commands_are_noted_with_who_when_why_and_from_where(store: SqlStore, url: str) -> None:
    entry = Audited(5.0, "alice", "owner", "unix", "", "mode", "run 4711", "debugging", "no")
    store.audit(entry)
    engine = writing_engine(url)
    with engine.connect() as connection:
        row = connection.execute(select(schema.audit)).one()
    engine.dispose()
    assert (row.who, row.command, loads(Audited, row.doc)) == ("alice", "mode", entry)


def test_pauses_are_kept_until_they_are_over(store: SqlStore) -> None:
    pause = Pause(PauseScope.ACTION, "drain", 5.0, "ada", "maintenance")
    store.save(Changes(pauses=(pause,)))
    store.save(Changes(at=6.0))
    assert store.load().pauses == (pause,)
    store.save(Changes(pauses=()))
    assert store.load().pauses == ()
