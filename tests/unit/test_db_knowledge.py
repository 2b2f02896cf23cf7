"""What is learned and proposed beside the loop's state: kept, bounded, told in the story."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from db import knowledge
from db.knowledge import Knowledge, Learned, Observation, Planned
from db.queries import Queries
from db.store import SqlStore
from tests.contract.test_store_contract import DECISION, INCIDENT, RUN
from unicrond.model.decision import Alternative, Decision
from unicrond.model.incident import IncidentState
from unicrond.model.run import RunState
from unicrond.ports import Changes, JournalEntry

SEEN = Observation(RUN.run_id, 16, 2, 10.0, (1.0, 1.1), 20)


def test_windows_of_one_size_are_gathered_and_the_newest_kept(
    store: SqlStore, queries: Queries
) -> None:
    store.learn(Knowledge(observations=(SEEN, replace(SEEN, workers=8))))
    many = tuple(float(i) for i in range(1, 40))
    store.learn(Knowledge(observations=(replace(SEEN, at=20.0, seconds=many, iterations=5),)))
    eight, sixteen = queries.observations(RUN.run_id)
    assert (eight.workers, eight.seconds) == (8, (1.0, 1.1))
    assert sixteen.seconds == many[-knowledge.MOST_WINDOWS :]
    assert (sixteen.at, sixteen.iterations) == (20.0, 25)


def test_observations_of_live_runs_are_those_of_all(store: SqlStore, queries: Queries) -> None:
    over = replace(RUN, run_id=1, state=RunState.COMPLETED)
    store.save(Changes(runs=(RUN, over)))
    store.learn(Knowledge(observations=(SEEN, replace(SEEN, run_id=1))))
    assert queries.observations() == (SEEN,)


def test_the_newest_of_what_was_learned_counts(store: SqlStore, queries: Queries) -> None:
    assert queries.learned("reliability", "cluster") is None
    for value in ({"a": 1}, {"a": 2}):
        store.learn(Knowledge(learned=(Learned("reliability", "cluster", 1.0, json.dumps(value)),)))
    assert queries.learned("reliability", "cluster") == {"a": 2}


def test_plans_are_kept_up_to_a_number(
    store: SqlStore, queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knowledge, "MOST_PLANS", 2)
    assert queries.last_plan() is None
    for at in (1.0, 2.0, 3.0):
        store.learn(Knowledge(plans=(Planned(at, "SEV1" if at > 2 else "run ended", "{}"),)))
    assert queries.last_plan() == Planned(3.0, "SEV1", "{}")
    assert queries.plans_since(0.0, but=["SEV1"]) == 1


def test_a_plan_without_an_incident_is_told_with_its_alternatives(
    store: SqlStore, queries: Queries
) -> None:
    stay = Decision(
        5.0, 0, RUN.run_id, 3, "stay", "nothing pays", False, (Alternative("a", True, "1"),)
    )
    line = JournalEntry(5.0, "plan", "nothing pays", RUN.run_id)
    store.learn(Knowledge(decisions=(stay,), journal=(line,)))
    (told,) = queries.story_of_run(RUN.run_id).items
    assert (told.entry, told.decision) == (line, stay)


def test_a_heal_is_known_by_the_last_decision_that_was_carried_out(
    store: SqlStore, queries: Queries
) -> None:
    resolved = replace(INCIDENT, state=IncidentState.RESOLVED)
    first, last = replace(DECISION, choice="restart"), replace(DECISION, choice="requeue")
    watched = replace(DECISION, choice="stay", acts=False)
    store.save(Changes(incidents=(resolved,), decisions=(first, last)))
    store.learn(Knowledge(decisions=(watched,)))
    assert queries.heals() == ((resolved, last),)
    assert queries.faults() == (resolved,)


def test_what_was_learned_of_a_run_goes_with_it(store: SqlStore, queries: Queries) -> None:
    over = replace(RUN, state=RunState.COMPLETED, ended_at=100.0)
    store.save(Changes(runs=(over,)))
    known = (
        Learned("throughput", str(RUN.run_id), 1.0, "{}"),
        Learned("uptime", "cluster", 1.0, "{}"),
    )
    store.learn(Knowledge(observations=(SEEN,), learned=known))
    while store.forget(before=200.0):
        pass
    assert queries.observations(RUN.run_id) == ()
    assert queries.learned("throughput", str(RUN.run_id)) is None
    assert queries.learned("uptime", "cluster") == {}


def test_an_observation_that_cannot_be_read_is_made_anew(
    store: SqlStore, queries: Queries, tmp_path: Path
) -> None:
    store.learn(Knowledge(observations=(SEEN,)))
    with closing(sqlite3.connect(tmp_path / "unicron.db")) as damaged, damaged:
        damaged.execute("UPDATE observations SET doc = '{}'")
    store.learn(Knowledge(observations=(SEEN,)))
    assert queries.observations(RUN.run_id) == (SEEN,)
