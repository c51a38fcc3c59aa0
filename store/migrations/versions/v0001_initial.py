"""Contexts, jobs, measured runs, profiles and plans."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "contexts",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("architecture", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("shapes", sa.JSON(), nullable=False),
        sa.Column("device_name", sa.Text(), nullable=False),
        sa.Column("device_capability", sa.Text(), nullable=False),
        sa.Column("runtime", sa.Text(), nullable=False),
        sa.Column("threads", _ID, nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_contexts"),
    )
    op.create_index("ix_contexts_fingerprint", "contexts", ["fingerprint"])
    op.create_index("ix_contexts_architecture", "contexts", ["architecture"])
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("settings_key", sa.Text(), nullable=False),
        sa.Column("context_key", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("elapsed_seconds", sa.Double(), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.ForeignKeyConstraint(["context_key"], ["contexts.key"], name="fk_jobs_context_key_contexts"),
    )
    op.create_index("ix_jobs_settings_key", "jobs", ["settings_key"])
    op.create_index("ix_jobs_context_key", "jobs", ["context_key"])
    op.create_index("ix_jobs_created_at", "jobs", ["created_at"])
    op.create_table(
        "runs",
        sa.Column("id", _ID, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("context_key", sa.Text(), nullable=False),
        sa.Column("plan_key", sa.Text(), nullable=False),
        sa.Column("formats", sa.JSON(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("split", sa.Text(), nullable=False),
        sa.Column("fresh", sa.Boolean(), nullable=False),
        sa.Column("searcher", sa.Text(), nullable=False),
        sa.Column("baseline_seconds", sa.Double(), nullable=True),
        sa.Column("plan_seconds", sa.Double(), nullable=True),
        sa.Column("speedup", sa.Double(), nullable=True),
        sa.Column("speedup_low", sa.Double(), nullable=True),
        sa.Column("speedup_high", sa.Double(), nullable=True),
        sa.Column("pairs", _ID, nullable=False),
        sa.Column("held_bytes", _ID, nullable=True),
        sa.Column("quality", sa.Double(), nullable=True),
        sa.Column("quality_drop", sa.Double(), nullable=True),
        sa.Column("reported", sa.JSON(), nullable=False),
        sa.Column("wall_seconds", sa.Double(), nullable=False),
        sa.Column("measured_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("digest", name="uq_runs_digest"),
        sa.ForeignKeyConstraint(["context_key"], ["contexts.key"], name="fk_runs_context_key_contexts"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_runs_context_key_plan_key_split", "runs", ["context_key", "plan_key", "split"])
    op.create_index("ix_runs_measured_at", "runs", ["measured_at"])
    op.create_table(
        "job_runs",
        sa.Column("id", _ID, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("run_id", _ID, nullable=False),
        sa.Column("searcher", sa.Text(), nullable=False),
        sa.Column("cached", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_job_runs"),
        sa.UniqueConstraint("job_id", "run_id", name="uq_job_runs_job_id_run_id"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_runs_job_id_jobs"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_job_runs_run_id_runs", ondelete="CASCADE"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_job_runs_run_id", "job_runs", ["run_id"])
    op.create_table(
        "attempts",
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("context_key", sa.Text(), nullable=False),
        sa.Column("plan_key", sa.Text(), nullable=False),
        sa.Column("fresh", sa.Boolean(), nullable=False),
        sa.Column("begun_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("token", name="pk_attempts"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_attempts_job_id_jobs"),
        sa.ForeignKeyConstraint(["context_key"], ["contexts.key"], name="fk_attempts_context_key_contexts"),
    )
    op.create_index("ix_attempts_job_id_plan_key", "attempts", ["job_id", "plan_key"])
    op.create_table(
        "profiles",
        sa.Column("context_key", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("context_key", "key", name="pk_profiles"),
        sa.ForeignKeyConstraint(["context_key"], ["contexts.key"], name="fk_profiles_context_key_contexts"),
    )
    op.create_table(
        "plans",
        sa.Column("id", _ID, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("context_key", sa.Text(), nullable=False),
        sa.Column("plan_key", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("speedup", sa.Double(), nullable=False),
        sa.Column("plan_bytes", _ID, nullable=False),
        sa.Column("quality_drop", sa.Double(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_plans"),
        sa.UniqueConstraint("digest", name="uq_plans_digest"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_plans_job_id_jobs"),
        sa.ForeignKeyConstraint(["context_key"], ["contexts.key"], name="fk_plans_context_key_contexts"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_plans_job_id", "plans", ["job_id"])
    op.create_index("ix_plans_context_key_speedup", "plans", ["context_key", "speedup"])
    op.create_index("ix_plans_context_key_plan_bytes", "plans", ["context_key", "plan_bytes"])


def downgrade() -> None:
    """Drop the tables, those that refer to others first."""
    for table in ("plans", "profiles", "attempts", "job_runs", "runs", "jobs", "contexts"):
        op.drop_table(table)
