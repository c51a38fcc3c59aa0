"""The tables, as SQLAlchemy models. Rows stay inside the store; `record()` gives what leaves it.

The migrations create these tables, never `create_all`; `tests/store/test_schema.py` holds the two together.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from autoprec.device_profile import DeviceProfile
from autoprec.errors import StoreError
from autoprec.plan import Device
from autoprec.store.records import (
    AuditEvent,
    Context,
    Job,
    Run,
    StoredDeviceProfile,
    StoredPlan,
    StoredPolicy,
    Token,
)

BigInt = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits everywhere; SQLite counts up by itself only in a column declared INTEGER."""


class Name(TypeDecorator[str]):
    """Text that is looked up: kept exactly, so what a database cannot keep is refused."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Refuse NUL, which PostgreSQL cannot keep, and lone surrogates, which UTF-8 cannot."""
        if value is not None and value != _storable(value):
            raise StoreError(
                f"{value!r} cannot be kept in a store: it holds a NUL character or half of a surrogate pair; "
                "use another name"
            )
        return value


class Prose(TypeDecorator[str]):
    """Text for people (a reason, a message). A run is never lost because its reason is odd."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace NUL by U+2400 and lone surrogates by a question mark."""
        return value if value is None else _storable(value)


class UTCDateTime(TypeDecorator[datetime]):
    """An instant. SQLite keeps no zone, so it gets UTC; a time without a zone is taken as UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Turn into UTC."""
        if value is None:
            return None
        value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return with the zone UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _storable(value: str) -> str:
    return value.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\u2400")


class Base(DeclarativeBase):
    """Base of the tables. Constraints are named, so that a later migration can change them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012  (SQLAlchemy reads it from the class)
        str: Name(),
        float: Double(),
        int: BigInt,
        datetime: UTCDateTime(),
        dict[str, Any]: JSON(),
        dict[str, str]: JSON(),
        list[str]: JSON(),
    }


class ContextRow(Base):
    """What figures hold for."""

    __tablename__ = "contexts"

    key: Mapped[str] = mapped_column(primary_key=True)
    workload: Mapped[str]
    fingerprint: Mapped[str] = mapped_column(index=True)
    architecture: Mapped[str] = mapped_column(index=True)
    purpose: Mapped[str]
    shapes: Mapped[list[str]]
    device_name: Mapped[str]
    device_capability: Mapped[str]
    runtime: Mapped[str]
    threads: Mapped[int]
    versions: Mapped[dict[str, str]]
    created_at: Mapped[datetime]

    def record(self) -> Context:
        """Return the frozen record."""
        device = Device(
            name=self.device_name,
            capability=self.device_capability,
            runtime=self.runtime,
            threads=self.threads,
            versions=self.versions,
        )
        return Context(
            workload=self.workload,
            fingerprint=self.fingerprint,
            architecture=self.architecture,
            purpose=self.purpose,  # type: ignore[arg-type]  # pydantic checks it
            shapes=tuple(self.shapes),
            device=device,
        )


class JobRow(Base):
    """A tuning job."""

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(primary_key=True)
    workload: Mapped[str]
    settings: Mapped[dict[str, Any]]
    settings_key: Mapped[str] = mapped_column(index=True)
    context_key: Mapped[str | None] = mapped_column(ForeignKey("contexts.key"), index=True)
    state: Mapped[str]
    phase: Mapped[str] = mapped_column(Prose())
    elapsed_seconds: Mapped[float]
    message: Mapped[str | None] = mapped_column(Prose())
    created_at: Mapped[datetime] = mapped_column(index=True)
    updated_at: Mapped[datetime]
    owner: Mapped[str | None] = mapped_column(Prose())
    idempotency_key: Mapped[str | None] = mapped_column(unique=True)
    address: Mapped[str | None]
    submission_id: Mapped[str | None]
    heartbeat_at: Mapped[datetime | None]
    lease_token: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    progress: Mapped[dict[str, Any] | None]

    __table_args__ = (Index(None, "state", "created_at"),)

    def record(self) -> Job:
        """Return the frozen record."""
        fields = {name: getattr(self, name) for name in Job.model_fields}
        return Job.model_validate(fields | {"progress": self.progress or {}})  # none, of before schema 0006


class RunRow(Base):
    """A measured run. It belongs to a context; `JobRunRow` says which jobs use it."""

    __tablename__ = "runs"

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(unique=True)
    context_key: Mapped[str] = mapped_column(ForeignKey("contexts.key"))
    plan_key: Mapped[str]
    formats: Mapped[list[str]]
    status: Mapped[str]
    reason: Mapped[str | None] = mapped_column(Prose())
    split: Mapped[str]
    fresh: Mapped[bool]
    searcher: Mapped[str]
    baseline_seconds: Mapped[float | None]
    plan_seconds: Mapped[float | None]
    speedup: Mapped[float | None]
    speedup_low: Mapped[float | None]
    speedup_high: Mapped[float | None]
    over_lossless: Mapped[float | None]
    over_lossless_low: Mapped[float | None]
    over_lossless_high: Mapped[float | None]
    pairs: Mapped[int]
    held_bytes: Mapped[int | None]
    quality: Mapped[float | None]
    quality_drop: Mapped[float | None]
    quality_share: Mapped[float] = mapped_column(server_default=text("1.0"))
    slice_drop: Mapped[float | None]
    reported: Mapped[dict[str, Any]]
    wall_seconds: Mapped[float]
    measured_at: Mapped[datetime] = mapped_column(index=True)

    __table_args__ = (
        Index(None, "context_key", "plan_key", "split"),
        {"sqlite_autoincrement": True},
    )

    def record(self, *, searcher: str | None = None, cached: bool = False) -> Run:
        """Return the frozen record, as the job that uses it sees it.

        Args:
            searcher: Who proposed it in that job; who proposed it first by default.
            cached: Whether an earlier job measured it.
        """
        fields = {name: getattr(self, name) for name in Run.model_fields if name != "cached"}
        fields["searcher"] = self.searcher if searcher is None else searcher
        return Run.model_validate(fields | {"cached": cached})


class JobRunRow(Base):
    """That a job uses a run: measured by itself, or taken over from an earlier job (`cached`)."""

    __tablename__ = "job_runs"

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    searcher: Mapped[str]
    cached: Mapped[bool]

    __table_args__ = (
        UniqueConstraint("job_id", "run_id"),
        Index(None, "job_id", "id"),
        {"sqlite_autoincrement": True},
    )


class AttemptRow(Base):
    """A run that was begun and has not finished: in flight, or its process died."""

    __tablename__ = "attempts"

    token: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    context_key: Mapped[str] = mapped_column(ForeignKey("contexts.key"))
    plan_key: Mapped[str]
    fresh: Mapped[bool]
    begun_at: Mapped[datetime]

    __table_args__ = (Index(None, "job_id", "plan_key"),)


class ClaimRow(Base):
    """That a job measures a plan now, so that no other does."""

    __tablename__ = "claims"

    context_key: Mapped[str] = mapped_column(ForeignKey("contexts.key"), primary_key=True)
    plan_key: Mapped[str] = mapped_column(primary_key=True)
    split: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    until: Mapped[datetime]


class AuditRow(Base):
    """What somebody did."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(primary_key=True)
    token: Mapped[str] = mapped_column(unique=True)
    subject: Mapped[str]
    key: Mapped[str]
    at: Mapped[datetime]
    who: Mapped[str] = mapped_column(Prose())
    what: Mapped[str]
    before: Mapped[str | None]
    after: Mapped[str | None]
    note: Mapped[str] = mapped_column(Prose())

    __table_args__ = (Index(None, "subject", "key", "id"), {"sqlite_autoincrement": True})

    def record(self) -> AuditEvent:
        """Return the frozen record."""
        return AuditEvent.model_validate({name: getattr(self, name) for name in AuditEvent.model_fields})


class TokenRow(Base):
    """A token of the HTTP API: its digest, never itself."""

    __tablename__ = "tokens"

    name: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(unique=True)
    scope: Mapped[str]
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]

    def record(self) -> Token:
        """Return the frozen record."""
        return Token.model_validate({name: getattr(self, name) for name in Token.model_fields})


class ProfileRow(Base):
    """What cheap passes learnt, as JSON."""

    __tablename__ = "profiles"

    context_key: Mapped[str] = mapped_column(ForeignKey("contexts.key"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    payload: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class PlanRow(Base):
    """A plan with its evidence."""

    __tablename__ = "plans"

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(unique=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    context_key: Mapped[str] = mapped_column(ForeignKey("contexts.key"))
    plan_key: Mapped[str]
    role: Mapped[str]
    plan: Mapped[str]
    speedup: Mapped[float]
    plan_bytes: Mapped[int]
    quality_drop: Mapped[float]
    created_at: Mapped[datetime]
    state: Mapped[str]
    workload: Mapped[str]
    fingerprint: Mapped[str]
    architecture: Mapped[str]
    device_name: Mapped[str]
    runtime: Mapped[str]
    threads: Mapped[int]
    purpose: Mapped[str]
    objective: Mapped[str]
    metric: Mapped[str]
    shapes_key: Mapped[str]

    __table_args__ = (
        Index(None, "context_key", "speedup"),
        Index(None, "context_key", "plan_bytes"),
        Index(None, "architecture", "speedup"),
        Index(None, "architecture", "plan_bytes"),
        Index(None, "fingerprint", "speedup"),
        Index(None, "workload", "speedup"),
        Index(None, "state", "id"),
        {"sqlite_autoincrement": True},
    )

    def record(self) -> StoredPlan:
        """Return the frozen record."""
        return StoredPlan.model_validate({name: getattr(self, name) for name in StoredPlan.model_fields})


class PolicyRow(Base):
    """A trained policy: safetensors and JSON."""

    __tablename__ = "policies"

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str] = mapped_column(index=True)
    meta: Mapped[dict[str, Any]]
    weights: Mapped[bytes] = mapped_column(LargeBinary())
    created_at: Mapped[datetime]

    __table_args__ = ({"sqlite_autoincrement": True},)

    def record(self) -> StoredPolicy:
        """Return the frozen record."""
        return StoredPolicy.model_validate({name: getattr(self, name) for name in StoredPolicy.model_fields})


class DeviceProfileRow(Base):
    """A device profile, as JSON text: its digest is that of the text."""

    __tablename__ = "device_profiles"

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(unique=True)
    device_name: Mapped[str] = mapped_column(index=True)
    profile: Mapped[str]
    measured_at: Mapped[datetime]
    created_at: Mapped[datetime]

    __table_args__ = ({"sqlite_autoincrement": True},)

    def record(self) -> StoredDeviceProfile:
        """Return the frozen record."""
        source = f"device profile {self.id} of the store"
        profile = DeviceProfile.from_json(self.profile, source=source)
        return StoredDeviceProfile(id=self.id, profile=profile, created_at=self.created_at)
