"""The ratio of a fresh run to the best lossless plan."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_COLUMNS = ("over_lossless", "over_lossless_low", "over_lossless_high")


def upgrade() -> None:
    """Add the columns; earlier runs have no such figures."""
    with op.batch_alter_table("runs") as batch:
        for name in _COLUMNS:
            batch.add_column(sa.Column(name, sa.Double(), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    with op.batch_alter_table("runs") as batch:
        for name in _COLUMNS:
            batch.drop_column(name)
