"""The plan: which format each unit of a model runs in, and the measured evidence for it.

Plans are data, never code. This module needs pydantic only, so that a tool without torch can read them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import reprlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from autoprec.errors import PlanError
from autoprec.files import write_in_one_step
from autoprec.strict_json import parse, refuse_repeats

SCHEMA = "autoprec.plan/1"
EAGER = "eager"
"""The runtime that is PyTorch itself."""
COMPILE = "compile"
"""The runtime that is PyTorch compiled by `torch.compile`."""
MODULE_RUNTIMES = (EAGER, COMPILE)
"""The runtimes whose plans replace modules of a model in PyTorch; the plans of others are model files."""
AS_GIVEN = "as given"
"""Named as the searcher of the plan that changes nothing."""
MAX_PLAN_BYTES = 64 * 2**20
"""Largest plan file that is read. A plan of 10 000 modules takes about 2 MB."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Interval(_Model):
    """An estimate with its bootstrap 95% interval."""

    value: Finite
    low: Finite
    high: Finite

    @model_validator(mode="after")
    def _ordered(self) -> Interval:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"expected low <= value <= high, got {self.low}, {self.value}, {self.high}")
        return self


class ModulePlan(_Model):
    """How one module computes.

    Attributes:
        path: The module's name in `model.named_modules()`.
        operation: What it computes.
        implementation: The kernel, a name that `autoprec.kernels.registry` knows for the unit's format.
        input_range: Smallest and largest input seen in calibration, after smoothing; needed by formats that
            are calibrated only.
        smoothing: The exponents of smoothing formats, in base64: see `autoprec.kernels.calibration`.
    """

    path: Name
    operation: Literal["linear", "conv2d", "embedding"]
    implementation: Name
    input_range: tuple[Finite, Finite] | None = None
    smoothing: Annotated[str, Field(max_length=2**20)] | None = None

    @model_validator(mode="after")
    def _readable(self) -> ModulePlan:
        if self.smoothing is not None:
            if self.input_range is None:
                raise ValueError("smoothing stands without an input_range")
            try:
                base64.b64decode(self.smoothing, validate=True)
            except ValueError as error:
                raise ValueError(f"smoothing is not base64: {error}") from None
        return self


class UnitPlan(_Model):
    """One precision decision: the modules that share it, and the format they run in."""

    name: Name
    format: Name
    modules: Annotated[tuple[ModulePlan, ...], Field(min_length=1)]


class Device(_Model):
    """Where something was measured.

    Attributes:
        name: Processor or accelerator, as the operating system names it.
        capability: What its kernels are chosen by, for example `AVX512_VNNI+BF16`.
        runtime: What executed the model, for example `eager`.
        threads: CPU threads used inside one operation.
        versions: Library name to version, those that change speed or numerics.
    """

    name: Name
    capability: str
    runtime: Name
    threads: Annotated[int, Field(ge=1)]
    versions: dict[str, str]


class Quality(_Model):
    """Quality before and after, higher is better.

    Attributes:
        metric: What was judged, in words.
        split: The part of the data it was judged on: `final` (held out) or `search`.
        baseline: Quality of the model as it came.
        plan: Quality under the plan.
        drop: `baseline - plan`.
        reported: Further metrics, name to (baseline, plan), for people; not used by the search.
    """

    metric: Name
    split: Literal["search", "final"]
    baseline: Finite
    plan: Finite
    drop: Finite
    reported: dict[str, tuple[Finite, Finite]] = {}


class Evidence(_Model):
    """What was measured for this plan, fresh, after the search had ended.

    Attributes:
        workload: Reference of the workload that was measured.
        fingerprint: Fingerprint of weights, quality code, data and shapes that the figures hold for.
        weights: Fingerprint of the weights alone.
        objective: What was asked for.
        max_quality_drop: The limit that was asked for, absolute; `None` for the whole front.
        baseline_ms: Median time of one run of the model as it came, in milliseconds.
        plan_ms: Median time of one run under the plan, in milliseconds.
        speedup: Against the model as it came.
        speedup_over_lossless: Against the best lossless plan (same numbers, faster kernels).
        baseline_bytes: Bytes held by parameters and buffers of the model as it came.
        plan_bytes: The same under the plan, packed weights included.
        quality: Quality before and after.
        shapes: The inputs that were timed, in words.
        device: Where it was measured.
        searcher: Which searcher proposed the plan; `AS_GIVEN` for the plan that changes nothing.
        measured_runs: How many measured runs the search had spent.
        pairs: How many pairs of interleaved timings stand behind `speedup`.
        measured_at: UTC time, ISO 8601.
    """

    workload: Name
    fingerprint: Name
    weights: Name
    objective: Literal["latency", "throughput", "memory"]
    max_quality_drop: Finite | None
    baseline_ms: Finite
    plan_ms: Finite
    speedup: Interval
    speedup_over_lossless: Interval | None
    baseline_bytes: Annotated[int, Field(ge=0)]
    plan_bytes: Annotated[int, Field(ge=0)]
    quality: Quality
    shapes: tuple[str, ...]
    device: Device
    searcher: Name
    measured_runs: Annotated[int, Field(ge=0)]
    pairs: Annotated[int, Field(ge=1)]
    measured_at: Name


class Prediction(_Model):
    """What is expected of a plan that was not measured, from the measured runs of others.

    Attributes:
        metric: What quality means.
        weights: Fingerprint of the weights of the model whose runs they are.
        shapes: The inputs that were timed, in words.
        device: Where those runs were measured.
        objective: What was asked for.
        max_quality_drop: The limit on the drop that was asked for, absolute.
        speedup: Expected, with an interval of 95%.
        quality_drop: Expected, with an interval of 95%.
        max_bytes: The limit on bytes that was asked for, if any.
        keeps_limits: Probability that the plan runs and, measured, keeps the limits.
        plan_bytes: Bytes held; exact but for what the runtime adds.
        runs: Measured runs that it stands on.
    """

    metric: Name
    weights: Name
    shapes: tuple[str, ...]
    device: Device
    objective: Literal["latency", "throughput", "memory"]
    max_quality_drop: Finite
    max_bytes: Annotated[int, Field(ge=0)] | None
    speedup: Interval
    quality_drop: Interval
    keeps_limits: Annotated[float, Field(ge=0, le=1)]
    plan_bytes: Annotated[int, Field(ge=0)]
    runs: Annotated[int, Field(ge=0)]


class Plan(_Model):
    """A deployable precision plan (`autoprec.plan/1`).

    Attributes:
        schema_version: Always `autoprec.plan/1`; written as `schema`.
        architecture: Fingerprint of the model structure that the plan fits.
        runtime: What executes the model; formats and figures hold for it.
        units: Every unit, the untouched ones too.
        left: Modules with weights that no unit covers, path to the reason. They run as they came.
        evidence: What was measured, if anything was.
        prediction: What is expected, where nothing was measured.
    """

    schema_version: Literal["autoprec.plan/1"] = Field(default="autoprec.plan/1", alias="schema")
    architecture: Name
    runtime: Name = EAGER
    units: Annotated[tuple[UnitPlan, ...], Field(min_length=1)]
    left: dict[str, str] = {}
    evidence: Evidence | None = None
    prediction: Prediction | None = None

    @model_validator(mode="after")
    def _distinct(self) -> Plan:
        refuse_repeats("unit", (unit.name for unit in self.units))
        refuse_repeats("module", (module.path for unit in self.units for module in unit.modules))
        return self

    @property
    def formats(self) -> dict[str, str]:
        """Unit name to format."""
        return {unit.name: unit.format for unit in self.units}

    @property
    def key(self) -> str:
        """Digest of what the plan makes a model do: module, format, implementation and calibration."""
        rows = sorted(
            (module.path, unit.format, module.implementation, module.input_range, module.smoothing)
            for unit in self.units
            for module in unit.modules
        )
        text = json.dumps(rows if self.runtime == EAGER else [self.runtime, rows])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def to_json(self) -> str:
        """Return the plan as indented JSON, with a newline at the end."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"

    def save(self, path: str | Path) -> Path:
        """Write the plan to `path` in one step, so that a reader never sees half a file.

        Raises:
            PlanError: The file cannot be written.
        """
        target = Path(path)
        try:
            write_in_one_step(target, self.to_json().encode())
        except (OSError, ValueError) as error:
            raise PlanError(f"cannot write plan {str(target)!r}: {_reason(error)}") from error
        return target

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read and validate a plan file.

        Raises:
            PlanError: The file is missing, too large, not JSON, or not a valid plan; names the place.
        """
        source = Path(path)
        try:
            with source.open("rb") as file:
                # Sparse files and devices: their size says nothing of what reading them takes.
                content = file.read(MAX_PLAN_BYTES + 1)
                size = max(source.stat().st_size, len(content))
            if len(content) > MAX_PLAN_BYTES:
                raise PlanError(
                    f"plan {str(source)!r} has {size / 2**20:.0f} MB, more than the "
                    f"{MAX_PLAN_BYTES // 2**20} MB that a plan may have; is it a plan?"
                )
            text = content.decode()
        except (OSError, ValueError) as error:
            raise PlanError(f"cannot read plan {str(source)!r}: {_reason(error)}") from error
        return cls.from_json(text, source=str(source))

    @classmethod
    def from_json(cls, text: str, *, source: str = "plan") -> Plan:
        """Validate a plan given as JSON text; `source` names it in errors.

        Raises:
            PlanError: The text is not a valid plan; names the first place that is wrong.
        """
        try:
            data = parse(text)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"{source} is not a valid plan: {error}") from error
        if not isinstance(data, dict):
            raise PlanError(f"{source} is not a plan: expected a JSON object, got {type(data).__name__}")
        if data.get("schema") != SCHEMA:
            raise PlanError(
                f"{source} has schema {reprlib.repr(data.get('schema'))}; this version reads {SCHEMA!r}. "
                "Use the AutoPrec version that wrote it, or tune again."
            )
        try:
            # Strict: what the published schema refuses (a figure as text) is refused here too. From the text,
            # since strict validation of Python's values wants tuples, which JSON has not.
            return cls.model_validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(_shown(part) for part in first["loc"]) or "the plan as a whole"
            more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
            raise PlanError(f"{source} is not a valid plan: at {place}: {first['msg']}{more}") from error


def plan_schema() -> dict[str, Any]:
    """Return the published JSON Schema of plan files, as kept in `docs/plan.schema.json`."""
    schema = Plan.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA, **schema}


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _shown(part: str | int) -> str:
    """Return a part of a place: a key of the file could be anything."""
    return part if isinstance(part, str) and part.isidentifier() else reprlib.repr(part)
