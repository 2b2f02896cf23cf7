"""When runs and incidents ended, to forget the old ones. Frozen, like every revision."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

# table, its key, and where its doc has the time
_TABLES = (("runs", "run_id", "ended_at"), ("incidents", "incident_id", "closed_at"))
_ROWS = 500


def upgrade() -> None:
    for table, key, told in _TABLES:
        if not _has_ends(table):
            op.add_column(table, sa.Column("ended_at", sa.Double))
        op.create_index(f"{table}_ended_at", table, ["ended_at"], if_not_exists=True)
        _fill(table, key, told)


def downgrade() -> None:
    for table, _, _ in _TABLES:
        op.drop_index(f"{table}_ended_at", table, if_exists=True)
        if _has_ends(table):
            op.drop_column(table, "ended_at")


def _has_ends(table: str) -> bool:
    """Made by an upgrade that was interrupted, where the database keeps its parts."""
    columns = sa.inspect(op.get_bind()).get_columns(table)
    return "ended_at" in {column["name"] for column in columns}


def _fill(name: str, key: str, told: str) -> None:
    table = sa.table(name, *map(sa.column, (key, "ended", "ended_at", "doc")))
    db, last = op.get_bind(), -1
    c = table.c
    while rows := db.execute(
        sa.select(c[key], c.doc)
        .where(c.ended == sa.true(), c[key] > last)
        .order_by(c[key])
        .limit(_ROWS)
    ).all():
        for number, doc in rows:
            ended_at = json.loads(doc).get(told) or None
            db.execute(sa.update(table).where(c[key] == number).values(ended_at=ended_at))
        last = rows[-1][0]
