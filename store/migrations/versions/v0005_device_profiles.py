"""Device profiles: what layers take on devices that need not be here."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "device_profiles",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("device_name", sa.Text(), nullable=False),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_device_profiles"),
        sa.UniqueConstraint("digest", name="uq_device_profiles_digest"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_device_profiles_device_name", "device_profiles", ["device_name"])


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("device_profiles")
