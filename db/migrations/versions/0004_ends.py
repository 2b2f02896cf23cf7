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
    """What is there already was made by an upgrade that was interrupted."""
    for table, key, told in _TABLES:
        inspector = sa.inspect(op.get_bind())
        if "ended_at" not in {column["name"] for column in inspector.get_columns(table)}:
            op.add_column(table, sa.Column("ended_at", sa.Double))
        if f"{table}_ended_at" not in {index["name"] for index in inspector.get_indexes(table)}:
            op.create_index(f"{table}_ended_at", table, ["ended_at"])
        _fill(table, key, told)


def downgrade() -> None:
    for table, _, _ in _TABLES:
        op.drop_index(f"{table}_ended_at", table)
        op.drop_column(table, "ended_at")


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
