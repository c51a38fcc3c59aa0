"""The fidelity of each run: the share of the data that its quality is on, and its drop on a slice."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; earlier runs were judged on all of the data."""
    with op.batch_alter_table("runs") as batch:
        batch.add_column(
            sa.Column("quality_share", sa.Double(), nullable=False, server_default=sa.text("1.0"))
        )
        batch.add_column(sa.Column("slice_drop", sa.Double(), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    with op.batch_alter_table("runs") as batch:
        for name in ("quality_share", "slice_drop"):
            batch.drop_column(name)
