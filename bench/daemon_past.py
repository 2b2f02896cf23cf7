"""A store with a long past: incidents that are over, with what hangs on them.

Times lie 89 days back, so that nothing is forgotten meanwhile; one statement a table writes all
rows after the pattern of one that the store itself wrote.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Table, create_engine, text

from db import schema
from db.store import open_store
from unicrond.model.decision import (
    Action,
    ActionKey,
    ActionKind,
    Alternative,
    Decision,
    Outcome,
    OutcomeState,
)
from unicrond.model.incident import Incident, IncidentState, Proof, Review, Scope, Severity
from unicrond.model.run import Run, RunState
from unicrond.ports import Changes, JournalEntry

PATTERN = 987_654_321  # the number of the row that all others are made after
DAY_SECONDS = 86_400.0
ACTIONS_EACH = 4
RUN = 99_000


def fill(url: str, incidents: int) -> None:
    """Rows of every table that grows with incidents, as the store itself writes them."""
    with closing(open_store(url)) as store:
        store.save(_one(time.time() - 89 * DAY_SECONDS))
    engine = create_engine(url)
    with engine.begin() as connection:
        for table in (schema.incidents, schema.reviews, schema.decisions, schema.journal):
            _multiply(connection, table, incidents)
        _multiply(connection, schema.actions, incidents)
        for table in (schema.incidents, schema.reviews, schema.decisions, schema.actions,
                      schema.journal):  # fmt: skip
            connection.execute(table.delete().where(table.c.incident_id == PATTERN))
    engine.dispose()


def _one(at: float) -> Changes:
    """An incident of a run that is over, and all that was written about it."""
    incident = Incident(
        PATTERN, at, "exited abnormally", Severity.SEV2, Scope.RANK, RUN, 1, "n00001", 0,
        IncidentState.RESOLVED, "rank 0 on n00001 ended with 1", 10, "", at, at, at + 5,
        "exit.code",
    )  # fmt: skip
    key = ActionKey(PATTERN, 1, PATTERN)
    actions = [
        Action(replace(key, ordinal=PATTERN + i), ActionKind.STOP_RANKS, RUN, "n00001",
               {"generation": 1})
        for i in range(ACTIONS_EACH)
    ]  # fmt: skip
    reason = "rank 0 on n00001 ended with 1; restarting run 99000 on 10 nodes"
    return Changes(
        runs=(Run(RUN, "gpt", "ada", 2000, 1.0, 1, 1, 1, ("n00001",), "n00001", 0,
                  RunState.COMPLETED, ended_at=at + 60),),
        incidents=(incident,),
        decisions=(Decision(at, PATTERN, RUN, 1, "restart", reason, True,
                            (Alternative("restart", True, "nothing else was weighed"),)),),
        intents=tuple(actions),
        outcomes=tuple(Outcome(a.key, at, OutcomeState.DONE) for a in actions),
        journal=tuple(JournalEntry(at, kind, reason, RUN, PATTERN, "n00001", 1)
                      for kind in ("signal", "decision", "action", "note")),
        reviews=(Review(PATTERN, incident.rule, Proof.CONFIRMED, at, "ada", run_id=RUN),),
    )  # fmt: skip


def _multiply(connection: Connection, table: Table, incidents: int) -> None:
    """Each row of the pattern for incidents 1 to `incidents`."""
    columns = [c for c in table.columns if not (c.autoincrement is True and c.primary_key)]
    values = ", ".join(_value(c) for c in columns)
    connection.execute(
        text(
            "WITH RECURSIVE number(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM number "
            f"WHERE i < {incidents}) INSERT INTO {table.name} "
            f"({', '.join(_quoted(c) for c in columns)}) SELECT {values} "
            f"FROM number CROSS JOIN (SELECT * FROM {table.name} WHERE incident_id = {PATTERN})"
        )
    )


def _value(column: Any) -> str:
    if column.name == "incident_id":
        return "i"
    if column.name == "ordinal":
        return f"(ordinal - {PATTERN}) + i * {ACTIONS_EACH}"
    if column.name in ("doc", "intent", "outcome"):
        return f"replace({column.name}, '{PATTERN}', i)"
    return _quoted(column)


def _quoted(column: Any) -> str:
    return f'"{column.name}"'
