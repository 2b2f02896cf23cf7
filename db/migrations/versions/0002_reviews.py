"""Whether the rules that opened incidents were right. Frozen, like every revision."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"

_WORDS = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    op.create_table(
        "reviews",
        sa.Column("incident_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("doc", _WORDS, nullable=False),
        if_not_exists=True,
    )


def downgrade() -> None:
    op.drop_table("reviews", if_exists=True)
