"""The first tables. Frozen: a change of the schema is a new revision, never an edit of this one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None

_NAME = sa.String(255)
_WORDS = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "meta",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("value", _WORDS, nullable=False),
        if_not_exists=True,
    )
    _create_runs()
    _create_incidents()
    _create_decisions()
    _create_actions()
    _create_journal()
    _create_allocations()
    op.create_table(
        "nodes",
        sa.Column("name", _NAME, primary_key=True),
        sa.Column("state", _NAME, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
        sa.Column("doc", _WORDS, nullable=False),
        if_not_exists=True,
    )


def downgrade() -> None:
    for table in (
        "nodes",
        "allocations",
        "journal",
        "actions",
        "decisions",
        "incidents",
        "runs",
        "meta",
    ):
        op.drop_table(table, if_exists=True)


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("run_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("user", _NAME, nullable=False),
        sa.Column("state", _NAME, nullable=False),
        sa.Column("ended", sa.Boolean, nullable=False),
        sa.Column("doc", _WORDS, nullable=False),
        if_not_exists=True,
    )
    op.create_index("runs_ended", "runs", ["ended", "run_id"], if_not_exists=True)


def _create_incidents() -> None:
    op.create_table(
        "incidents",
        sa.Column("incident_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("run_id", sa.BigInteger),
        sa.Column("root_node", _NAME, nullable=False),
        sa.Column("state", _NAME, nullable=False),
        sa.Column("ended", sa.Boolean, nullable=False),
        sa.Column("opened_at", sa.Double, nullable=False),
        sa.Column("doc", _WORDS, nullable=False),
        if_not_exists=True,
    )
    op.create_index("incidents_ended", "incidents", ["ended", "incident_id"], if_not_exists=True)
    op.create_index("incidents_run", "incidents", ["run_id", "incident_id"], if_not_exists=True)


def _create_decisions() -> None:
    op.create_table(
        "decisions",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("incident_id", sa.BigInteger, nullable=False),
        sa.Column("run_id", sa.BigInteger),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("doc", _WORDS, nullable=False),
        sqlite_autoincrement=True,
        if_not_exists=True,
    )
    op.create_index("decisions_incident", "decisions", ["incident_id", "id"], if_not_exists=True)


def _create_actions() -> None:
    op.create_table(
        "actions",
        sa.Column("incident_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("generation", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("ordinal", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", _NAME, nullable=False),
        sa.Column("run_id", sa.BigInteger),
        sa.Column("node", _NAME, nullable=False),
        sa.Column("intent", _WORDS, nullable=False),
        sa.Column("outcome_state", _NAME),
        sa.Column("outcome_at", sa.Double),
        sa.Column("outcome", _WORDS),
        if_not_exists=True,
    )
    op.create_index(
        "actions_outcome", "actions", ["outcome_state", "kind", "outcome_at"], if_not_exists=True
    )


def _create_journal() -> None:
    op.create_table(
        "journal",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("kind", _NAME, nullable=False),
        sa.Column("run_id", sa.BigInteger),
        sa.Column("incident_id", sa.BigInteger),
        sa.Column("node", _NAME, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("text", _WORDS, nullable=False),
        sa.Column("data", _WORDS, nullable=False),
        sqlite_autoincrement=True,
        if_not_exists=True,
    )
    op.create_index("journal_run", "journal", ["run_id", "id"], if_not_exists=True)
    op.create_index("journal_incident", "journal", ["incident_id", "id"], if_not_exists=True)
    op.create_index("journal_node", "journal", ["node", "id"], if_not_exists=True)


def _create_allocations() -> None:
    op.create_table(
        "allocations",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("job_id", sa.BigInteger, nullable=False),
        sa.Column("user", _NAME, nullable=False),
        sa.Column("account", _NAME, nullable=False),
        sa.Column("partition", _NAME, nullable=False),
        sa.Column("state", _NAME, nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("submit_time", sa.Double, nullable=False),
        sa.Column("start_time", sa.Double, nullable=False),
        sa.Column("end_time", sa.Double, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
        sa.Column("gone_at", sa.Double),
        sa.Column("doc", _WORDS, nullable=False),
        sqlite_autoincrement=True,
        if_not_exists=True,
    )
    op.create_index("allocations_gone", "allocations", ["gone_at", "id"], if_not_exists=True)
    op.create_index("allocations_job", "allocations", ["job_id", "id"], if_not_exists=True)
    op.create_index("allocations_user", "allocations", ["user", "id"], if_not_exists=True)
