"""The frozen records that go into the store and come out of it. No ORM object leaves the store."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from autoprec.device_profile import DeviceProfile
from autoprec.plan import Device, Plan

JobState = Literal["queued", "running", "interrupted", "failed", "finished"]
PlanState = Literal["candidate", "verified", "deployed", "retired"]
Scope = Literal["read", "submit", "admin"]
Finite = Annotated[float, Field(allow_inf_nan=False)]


def utc_now() -> datetime:
    """Return the present time, with its zone."""
    return datetime.now(UTC)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Context(_Record):
    """What a measured figure holds for. Figures of two contexts are never mixed.

    Attributes:
        workload: Reference of the workload, for people (`minilm`, `my.py:Mine`).
        fingerprint: Digest of architecture, weights, quality code, its data and the shapes.
        architecture: Digest of the model's structure only.
        purpose: `latency` or `throughput`: which example inputs were timed (memory jobs time latency).
        shapes: The inputs that were timed, in words.
        device: Where and with what.
    """

    workload: str
    fingerprint: str
    architecture: str
    purpose: Literal["latency", "throughput"]
    shapes: tuple[str, ...]
    device: Device

    @property
    def key(self) -> str:
        """Digest of everything but the workload's name."""
        return _digest(self.model_dump(mode="json", exclude={"workload"}))


class Run(_Record):
    """One measured run: a plan executed for real, or its failure.

    Attributes:
        plan_key: `Plan.key` of what ran.
        formats: Format of each unit, in the order of the job's units.
        status: `ok`, or `failed` (`reason` says why; the figures that were not reached are `None`).
        split: Part of the data that quality was judged on.
        fresh: Measured again after the search, for the evidence; a fresh run never serves as a cache hit.
        searcher: Who proposed it.
        baseline_seconds: Median seconds of one run of the model as it came, interleaved with this plan.
        plan_seconds: Median seconds of one run under the plan.
        speedup: Median paired ratio baseline ÷ plan; `None` where a unit was emulated.
        speedup_low: Lower end of its bootstrap 95% interval.
        speedup_high: Upper end.
        over_lossless: Median paired ratio best lossless plan ÷ plan; fresh runs only.
        over_lossless_low: Lower end of its bootstrap 95% interval.
        over_lossless_high: Upper end.
        pairs: Number of paired ratios.
        held_bytes: Bytes of parameters, buffers and packed weights.
        quality: Quality under the plan, on `quality_share` of the data.
        quality_drop: The baseline's quality on the same data minus `quality`.
        quality_share: The fidelity: 1 where all of the data judged; below, no figure reaches a plan.
        slice_drop: The drop on a slice, where the plan was judged on that before all of the data.
        reported: Further metrics, for people.
        wall_seconds: Wall time that the whole measured run took, conversion included.
        cached: Measured by an earlier job and taken over by this one; set by the store when it reads.
        measured_at: When it finished.
    """

    plan_key: str
    formats: tuple[str, ...]
    status: Literal["ok", "failed"]
    reason: str | None = None
    split: Literal["search", "final"] = "search"
    fresh: bool = False
    searcher: str
    baseline_seconds: Finite | None = None
    plan_seconds: Finite | None = None
    speedup: Finite | None = None
    speedup_low: Finite | None = None
    speedup_high: Finite | None = None
    over_lossless: Finite | None = None
    over_lossless_low: Finite | None = None
    over_lossless_high: Finite | None = None
    pairs: int = 0
    held_bytes: int | None = None
    quality: Finite | None = None
    quality_drop: Finite | None = None
    quality_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    slice_drop: Finite | None = None
    reported: dict[str, Finite] = {}
    wall_seconds: Finite
    cached: bool = False
    measured_at: datetime = Field(default_factory=utc_now)


class Job(_Record):
    """One tuning job.

    Attributes:
        id: Short unique id, for people to type.
        workload: Reference of the workload.
        settings: The settings as given, JSON.
        settings_key: Digest of the settings that decide what is searched; `--resume` matches it.
        context_key: What its figures hold for; `None` until the baseline was measured.
        state: Where it stands.
        phase: What it was doing last, for people.
        elapsed_seconds: Wall time used so far, over all resumes.
        message: Why it failed, if it did.
        owner: Who asked for it, for people.
        idempotency_key: Of two jobs with the same one only the first is made.
        address: Dashboard of the Ray cluster that it was handed to; no secret is in it.
        submission_id: What Ray calls it.
        heartbeat_at: When its driver was last heard of, by the database's clock.
        progress: Where its search stands, JSON: runs, best speedup, notes and so on.
    """

    id: str
    workload: str
    settings: dict[str, Any]
    settings_key: str
    context_key: str | None = None
    state: JobState = "running"
    phase: str = "starting"
    elapsed_seconds: Finite = 0.0
    message: str | None = None
    created_at: datetime = Field(default_factory=utc_now)
    updated_at: datetime = Field(default_factory=utc_now)
    owner: str | None = None
    idempotency_key: str | None = None
    address: str | None = None
    submission_id: str | None = None
    heartbeat_at: datetime | None = None
    progress: dict[str, Any] = {}


class StoredPlan(_Record):
    """A plan kept in the store.

    Attributes:
        id: Row number.
        job_id: The job that found it.
        context_key: What its evidence holds for.
        role: `best` for the job's goal, `front` for a member of its Pareto front, `lossless`.
        plan: The plan as JSON text (`Plan.from_json` reads it).
        speedup: From the evidence, for queries.
        plan_bytes: From the evidence.
        quality_drop: From the evidence.
        state: Where it stands in its life cycle.
        workload: Reference of the workload, as its job was given it.
        architecture: Fingerprint of the model's structure.
        device_name: Where it was measured.
        runtime: What executes it.
        objective: What its job made small.
        metric: What quality means.
    """

    id: int
    job_id: str
    context_key: str
    role: Literal["best", "front", "lossless"]
    plan: str
    speedup: Finite
    plan_bytes: int
    quality_drop: Finite
    created_at: datetime
    state: PlanState
    workload: str
    architecture: str
    device_name: str
    runtime: str
    objective: str
    metric: str

    def read(self) -> Plan:
        """Return the plan itself.

        Raises:
            PlanError: A version that this one does not read wrote it.
        """
        return Plan.from_json(self.plan, source=f"plan {self.id} of the store")


class AuditEvent(_Record):
    """What somebody did.

    Attributes:
        id: Row number.
        subject: To what kind of thing: `job`, `plan` or `token`.
        key: Which one.
        at: When.
        who: Who, for people.
        what: What was done, in a word; `state` where a plan moved along its life cycle.
        before: Its state before.
        after: Its state after.
        note: Why.
    """

    id: int
    subject: Literal["job", "plan", "token"]
    key: str
    at: datetime
    who: str
    what: str
    before: str | None
    after: str | None
    note: str


class Token(_Record):
    """A token of the HTTP API, without its secret.

    Attributes:
        name: For people.
        scope: What it allows: `submit` includes `read`, and `admin` both.
        last_used_at: To the minute.
        revoked_at: When it was made worthless.
    """

    name: str
    scope: Scope
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class StoredDeviceProfile(_Record):
    """A device profile kept in the store.

    Attributes:
        id: Row number.
        profile: The profile.
        created_at: When it was put in.
    """

    id: int
    profile: DeviceProfile
    created_at: datetime


class PolicyEntry(_Record):
    """A trained policy without its weights.

    Attributes:
        name: For people.
        meta: Feature and format vocabularies, network sizes, how it was trained.
    """

    id: int
    name: str
    meta: dict[str, Any]
    created_at: datetime


class StoredPolicy(PolicyEntry):
    """A trained policy: weights as safetensors, everything else as JSON. Never a pickle.

    Attributes:
        weights: The bytes of a safetensors file.
    """

    weights: bytes


JOB_POLICY = "job:"
"""A policy whose name begins so is what the job of the id that follows has learnt."""


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
