"""The tables. `doc` holds a whole value as JSON and is the truth; the columns beside it are copies
to search by. So a new field of a noun needs no migration, a new way to search does.

meta         one JSON value a key: mode, heartbeat
runs         every run
incidents    every incident
decisions    append only
actions      intents; the outcome joins its intent
journal      append only: the story
allocations  every Slurm job with GPUs: a row is written when it changes
nodes        as Slurm last described them
observations iteration times, a row for each run and each size that it had
knowledge    what was learned, one JSON value for each kind and subject
plans        what the planner proposed, the newest few hundred
reviews      whether the rule that opened an incident was right, one each
audit        every command: who, when, why, from where
spells       which nodes each job held, a row for each stretch of time
phases       what each run did, a row whenever that changed
lease        one row: which unicrond leads, where several share the database (lease.py)

Types are those that SQLite, PostgreSQL and MariaDB share. Times are Unix seconds.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006")
"""Every revision that this program knows, oldest first; a test holds it against migrations/."""

NAME_LENGTH = 255
_LONG_TEXT = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def _storable(value: str) -> str:
    """Users' words may hold what a database refuses: a NUL, half a surrogate pair."""
    return value.encode("utf-8", "replace").decode("utf-8").replace("\0", "�")


class Words(TypeDecorator[str]):
    """Text of any length, whatever it holds."""

    impl = _LONG_TEXT
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else _storable(value)


class Name(TypeDecorator[str]):
    """A short text that can be searched; cut to what fits an index."""

    impl = String(NAME_LENGTH)
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else _storable(value)[:NAME_LENGTH]


metadata = MetaData()
_ID = BigInteger().with_variant(Integer(), "sqlite")  # SQLite numbers only INTEGER by itself


def _number(name: str = "id") -> Column[Any]:
    return Column(name, _ID, primary_key=True, autoincrement=True)


def _given(name: str) -> Column[Any]:
    return Column(name, BigInteger, primary_key=True, autoincrement=False)


def _needed(name: str, type_: Any) -> Column[Any]:
    return Column(name, type_, nullable=False)


meta = Table(
    "meta", metadata, Column("key", String(64), primary_key=True), _needed("value", Words())
)

runs = Table(
    "runs",
    metadata,
    _given("run_id"),
    _needed("user", Name()),
    _needed("state", Name()),
    _needed("ended", Boolean),
    Column("ended_at", Double),
    Column("saved", BigInteger),  # number of the save that wrote it last
    _needed("doc", Words()),
    Index("runs_saved", "saved"),
    Index("runs_ended", "ended", "run_id"),
    Index("runs_ended_at", "ended_at"),
)

incidents = Table(
    "incidents",
    metadata,
    _given("incident_id"),
    Column("run_id", BigInteger),
    _needed("root_node", Name()),
    _needed("state", Name()),
    _needed("ended", Boolean),
    _needed("opened_at", Double),
    Column("ended_at", Double),
    Column("saved", BigInteger),
    _needed("doc", Words()),
    Index("incidents_saved", "saved"),
    Index("incidents_ended", "ended", "incident_id"),
    Index("incidents_ended_at", "ended_at"),
    Index("incidents_run", "run_id", "incident_id"),
)

decisions = Table(
    "decisions",
    metadata,
    _number(),
    _needed("incident_id", BigInteger),
    Column("run_id", BigInteger),
    _needed("at", Double),
    _needed("doc", Words()),
    Index("decisions_incident", "incident_id", "id"),
    sqlite_autoincrement=True,
)

actions = Table(
    "actions",
    metadata,
    _given("incident_id"),
    _given("generation"),
    _given("ordinal"),
    _needed("kind", Name()),
    Column("run_id", BigInteger),
    _needed("node", Name()),
    _needed("intent", Words()),
    Column("outcome_state", Name()),
    Column("outcome_at", Double),
    Column("outcome", Words()),
    Index("actions_outcome", "outcome_state", "kind", "outcome_at"),
)

journal = Table(
    "journal",
    metadata,
    _number(),
    _needed("at", Double),
    _needed("kind", Name()),
    Column("run_id", BigInteger),
    Column("incident_id", BigInteger),
    _needed("node", Name()),
    _needed("generation", BigInteger),
    _needed("text", Words()),
    _needed("data", Words()),
    Index("journal_run", "run_id", "id"),
    Index("journal_incident", "incident_id", "id"),
    Index("journal_node", "node", "id"),
    sqlite_autoincrement=True,
)

allocations = Table(
    "allocations",
    metadata,
    _number(),
    _needed("job_id", BigInteger),
    _needed("user", Name()),
    _needed("account", Name()),
    _needed("partition", Name()),
    _needed("state", Name()),
    _needed("gpus", Integer),
    _needed("submit_time", Double),
    _needed("start_time", Double),
    _needed("end_time", Double),
    _needed("changed_at", Double),
    Column("gone_at", Double),  # when Slurm no longer listed it; what `doc` says is older
    _needed("doc", Words()),
    Index("allocations_gone", "gone_at", "id"),
    Index("allocations_job", "job_id", "id"),
    Index("allocations_user", "user", "id"),
    sqlite_autoincrement=True,
)

nodes = Table(
    "nodes",
    metadata,
    Column("name", Name(), primary_key=True),
    _needed("state", Name()),
    _needed("changed_at", Double),
    _needed("doc", Words()),
)

reviews = Table("reviews", metadata, _given("incident_id"), _needed("doc", Words()))

observations = Table(
    "observations",
    metadata,
    _given("run_id"),
    _given("workers"),
    _needed("at", Double),
    _needed("doc", Words()),
)

knowledge = Table(
    "knowledge",
    metadata,
    Column("kind", String(64), primary_key=True),
    Column("subject", String(64), primary_key=True),
    _needed("at", Double),
    _needed("doc", Words()),
)

plans = Table(
    "plans",
    metadata,
    _number(),
    _needed("at", Double),
    _needed("cause", Name()),
    _needed("doc", Words()),
    Index("plans_at", "at"),
    sqlite_autoincrement=True,
)

audit = Table(
    "audit",
    metadata,
    _number(),
    _needed("at", Double),
    _needed("who", Name()),
    _needed("command", Name()),
    _needed("doc", Words()),
    Index("audit_at", "at"),
    sqlite_autoincrement=True,
)

spells = Table(
    "spells",
    metadata,
    _number(),
    _needed("job_id", BigInteger),
    _needed("began", Double),
    Column("ended", Double),  # null: it still holds its nodes; what `doc` says is older
    _needed("doc", Words()),
    Index("spells_job", "job_id", "id"),
    Index("spells_ended", "ended"),
    sqlite_autoincrement=True,
)

phases = Table(
    "phases",
    metadata,
    _number(),
    _needed("run_id", BigInteger),
    _needed("began", Double),
    _needed("doc", Words()),
    Index("phases_run", "run_id", "id"),
    sqlite_autoincrement=True,
)

lease = Table(
    "lease",
    metadata,
    _given("id"),
    _needed("term", BigInteger),
    _needed("holder", Name()),
    _needed("host", Name()),
    _needed("wait_seconds", Double),
    _needed("renewals", BigInteger),
    _needed("renewed_at", Double),  # of the database's clock
)
