"""The service: leases, claims and submissions of jobs, a life cycle of plans, tokens, and an audit trail."""

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_JOB_COLUMNS: tuple[tuple[str, TypeEngine[Any]], ...] = (
    ("owner", sa.Text()),
    ("idempotency_key", sa.Text()),
    ("address", sa.Text()),
    ("submission_id", sa.Text()),
    ("heartbeat_at", sa.DateTime(timezone=True)),
    ("lease_token", sa.Text()),
    ("lease_until", sa.DateTime(timezone=True)),
    ("progress", sa.JSON()),
)
_PLAN_COLUMNS: tuple[tuple[str, TypeEngine[Any]], ...] = (
    ("state", sa.Text()),
    ("workload", sa.Text()),
    ("fingerprint", sa.Text()),
    ("architecture", sa.Text()),
    ("device_name", sa.Text()),
    ("runtime", sa.Text()),
    ("threads", sa.BigInteger().with_variant(sa.Integer(), "sqlite")),
    ("purpose", sa.Text()),
    ("objective", sa.Text()),
    ("metric", sa.Text()),
    ("shapes_key", sa.Text()),
)
_PLAN_INDEXES = (
    ("architecture", "speedup"),
    ("architecture", "plan_bytes"),
    ("fingerprint", "speedup"),
    ("workload", "speedup"),
    ("state", "id"),
)
_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create what is new, and take what queries need of each plan out of its JSON."""
    with op.batch_alter_table("jobs") as batch:
        for name, kind in _JOB_COLUMNS:
            batch.add_column(sa.Column(name, kind, nullable=True))
        batch.create_unique_constraint("uq_jobs_idempotency_key", ["idempotency_key"])
    op.create_index("ix_jobs_state_created_at", "jobs", ["state", "created_at"])
    with op.batch_alter_table("plans") as batch:
        for name, kind in _PLAN_COLUMNS:
            batch.add_column(sa.Column(name, kind, nullable=True))
    _fill(op.get_bind())
    with op.batch_alter_table("plans") as batch:
        for name, kind in _PLAN_COLUMNS:
            batch.alter_column(name, existing_type=kind, nullable=False)
    for columns in _PLAN_INDEXES:
        op.create_index(f"ix_plans_{'_'.join(columns)}", "plans", list(columns))
    op.create_index("ix_job_runs_job_id_id", "job_runs", ["job_id", "id"])
    op.create_table(
        "claims",
        sa.Column("context_key", sa.Text(), nullable=False),
        sa.Column("plan_key", sa.Text(), nullable=False),
        sa.Column("split", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["context_key"], ["contexts.key"], name="fk_claims_context_key_contexts"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_claims_job_id_jobs"),
        sa.PrimaryKeyConstraint("context_key", "plan_key", "split", name="pk_claims"),
    )
    op.create_table(
        "audit",
        sa.Column("id", _BIG, nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("before", sa.Text()),
        sa.Column("after", sa.Text()),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        sa.UniqueConstraint("token", name="uq_audit_token"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_subject_key_id", "audit", ["subject", "key", "id"])
    op.create_table(
        "tokens",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("name", name="pk_tokens"),
        sa.UniqueConstraint("digest", name="uq_tokens_digest"),
    )


def downgrade() -> None:
    """Drop what was created."""
    for name in ("tokens", "audit", "claims"):
        op.drop_table(name)
    op.drop_index("ix_job_runs_job_id_id", "job_runs")
    for columns in _PLAN_INDEXES:
        op.drop_index(f"ix_plans_{'_'.join(columns)}", "plans")
    with op.batch_alter_table("plans") as batch:
        for name, _ in _PLAN_COLUMNS:
            batch.drop_column(name)
    op.drop_index("ix_jobs_state_created_at", "jobs")
    with op.batch_alter_table("jobs") as batch:
        batch.drop_constraint("uq_jobs_idempotency_key", type_="unique")
        for name, _ in _JOB_COLUMNS:
            batch.drop_column(name)


def _fill(connection: sa.Connection) -> None:
    rows = connection.execute(
        sa.text(
            "SELECT plans.id, plans.plan, contexts.fingerprint, contexts.architecture, contexts.device_name,"
            " contexts.runtime, contexts.threads, contexts.purpose, jobs.workload FROM plans"
            " JOIN contexts ON contexts.key = plans.context_key JOIN jobs ON jobs.id = plans.job_id"
        )
    ).mappings()
    setting = ", ".join(f"{name} = :{name}" for name, _ in _PLAN_COLUMNS)
    update = sa.text(f"UPDATE plans SET {setting} WHERE id = :id")  # noqa: S608  (names of columns above)
    for row in rows.all():
        evidence = json.loads(row["plan"])["evidence"]
        values = {name: row[name] for name, _ in _PLAN_COLUMNS if name in row}
        values |= {
            "id": row["id"],
            "state": "candidate",
            "objective": evidence["objective"],
            "metric": evidence["quality"]["metric"],
            # As `autoprec.store.checks.digest_of` made it when this was written.
            "shapes_key": hashlib.sha256(json.dumps(evidence["shapes"]).encode()).hexdigest(),
        }
        connection.execute(update, values)
