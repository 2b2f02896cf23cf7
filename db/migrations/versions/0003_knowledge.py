"""What the planner learned and proposed. Frozen: a change of the schema is a new revision."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"

_NAME = sa.String(255)
_WORDS = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "observations",
        sa.Column("run_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("workers", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("doc", _WORDS, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "knowledge",
        sa.Column("kind", sa.String(64), primary_key=True),
        sa.Column("subject", sa.String(64), primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("doc", _WORDS, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "plans",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("cause", _NAME, nullable=False),
        sa.Column("doc", _WORDS, nullable=False),
        sqlite_autoincrement=True,
        if_not_exists=True,
    )
    op.create_index("plans_at", "plans", ["at"], if_not_exists=True)


def downgrade() -> None:
    for table in ("plans", "knowledge", "observations"):
        op.drop_table(table, if_exists=True)
