"""Which unicrond leads. Frozen, like every revision."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "lease",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("term", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.String(255), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("wait_seconds", sa.Double, nullable=False),
        sa.Column("renewals", sa.BigInteger, nullable=False),
        sa.Column("renewed_at", sa.Double, nullable=False),
        if_not_exists=True,
    )


def downgrade() -> None:
    op.drop_table("lease", if_exists=True)
