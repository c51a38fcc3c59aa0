"""What goes over the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from autoprec.settings import TuneSettings
from autoprec.store.records import Job, PlanState, StoredPlan

NO_NUL = r"^[^\x00]*$"
"""Text that every database can keep."""


class PlanSummary(BaseModel):
    """A plan without its units; those are in its `plan.json`."""

    id: int
    job_id: str
    role: Literal["best", "front", "lossless"]
    state: PlanState
    workload: str
    architecture: str
    device_name: str
    runtime: str
    objective: str
    metric: str
    speedup: float
    plan_bytes: int
    quality_drop: float
    created_at: datetime


class JobSummary(BaseModel):
    """A job. `state` is `dead` where it says that it runs and its driver was not heard of for long."""

    id: str
    workload: str
    state: Literal["queued", "running", "interrupted", "failed", "finished", "dead"]
    phase: str
    message: str | None
    owner: str | None
    elapsed_seconds: float
    settings: dict[str, Any]
    progress: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    heartbeat_at: datetime | None


ShortText = Annotated[str, Field(min_length=1, max_length=500, pattern=NO_NUL)]


class JobRequest(BaseModel):
    """A job to submit; the options are those of `autoprec submit`."""

    workload: ShortText
    objective: Literal["latency", "throughput", "memory"] = "latency"
    max_quality_drop: ShortText | None = None
    max_memory: ShortText | None = None
    budget: ShortText | None = None
    runtime: ShortText = "eager"
    searcher: ShortText = "portfolio"
    formats: ShortText | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    groups: Annotated[list[ShortText], Field(max_length=100)] = []
    exclude: Annotated[list[ShortText], Field(max_length=100)] = []
    fresh: bool = False
    gpu: bool = False
    device: ShortText | None = None
    stations: Annotated[int | None, Field(ge=1, le=10_000)] = None
    threads: Annotated[int | None, Field(ge=1, le=10_000)] = None
    run_seconds: Annotated[float, Field(gt=0, lt=1e6)] = 600.0

    model_config = ConfigDict(extra="forbid", strict=True)


def summary(plan: StoredPlan) -> PlanSummary:
    """Return what is told of a plan."""
    return PlanSummary.model_validate(plan.model_dump(include=set(PlanSummary.model_fields)))


def job_summary(job: Job, state: str) -> JobSummary:
    """Return what is told of a job, whose paths and cluster are nobody's business."""
    told = job.model_dump(include=set(JobSummary.model_fields))
    settings = {name: value for name, value in job.settings.items() if name in TuneSettings.model_fields}
    return JobSummary.model_validate(told | {"state": state, "settings": settings})
