"""Who commanded what; which nodes jobs held and what runs did there; in which save a row was
written. Frozen, like every revision."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0005"
down_revision = "0004"

_NAME = sa.String(255)
_WORDS = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    for table in ("runs", "incidents"):
        if "saved" not in _columns(table):
            op.add_column(table, sa.Column("saved", sa.BigInteger))
        op.create_index(f"{table}_saved", table, ["saved"], if_not_exists=True)
    _create_audit()
    _create_spells()
    op.create_table(
        "phases",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("run_id", sa.BigInteger, nullable=False),
        sa.Column("began", sa.Double, nullable=False),
        sa.Column("doc", _WORDS, nullable=False),
        sqlite_autoincrement=True,
        if_not_exists=True,
    )
    op.create_index("phases_run", "phases", ["run_id", "id"], if_not_exists=True)


def downgrade() -> None:
    for name in ("phases", "spells", "audit"):
        op.drop_table(name, if_exists=True)
    for name in ("runs", "incidents"):
        op.drop_index(f"{name}_saved", name, if_exists=True)
        if "saved" in _columns(name):
            op.drop_column(name, "saved")


def _columns(table: str) -> set[str]:
    """Some were made by an upgrade that was interrupted, where the database keeps its parts."""
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("who", _NAME, nullable=False),
        sa.Column("command", _NAME, nullable=False),
        sa.Column("doc", _WORDS, nullable=False),
        sqlite_autoincrement=True,
        if_not_exists=True,
    )
    op.create_index("audit_at", "audit", ["at"], if_not_exists=True)


def _create_spells() -> None:
    op.create_table(
        "spells",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("job_id", sa.BigInteger, nullable=False),
        sa.Column("began", sa.Double, nullable=False),
        sa.Column("ended", sa.Double),
        sa.Column("doc", _WORDS, nullable=False),
        sqlite_autoincrement=True,
        if_not_exists=True,
    )
    op.create_index("spells_job", "spells", ["job_id", "id"], if_not_exists=True)
    op.create_index("spells_ended", "spells", ["ended"], if_not_exists=True)
