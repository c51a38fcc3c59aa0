"""Landscapes: recorded measured runs that replay a workload in microseconds.

A landscape file is JSON (`autoprec.landscape/1`, gzip allowed): search space, profile and trials. Formats
are kept by name, so a landscape written before a format was added to the vocabulary still loads.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autoprec.envs.space import (
    FEATURES,
    FORMAT_NAMES,
    Assignment,
    Goal,
    Profile,
    SearchSpace,
    Trial,
    best_trial,
)
from autoprec.errors import UserError
from autoprec.files import write_in_one_step

SCHEMA = "autoprec.landscape/1"
MAX_BYTES = 512 * 2**20
"""Largest landscape that is read, unpacked. A million trials of 30 units take about 120 MB."""


class LandscapeError(UserError):
    """A landscape cannot be read, or does not hold what was asked of it."""


class NotRecordedError(LandscapeError, LookupError):
    """A plan was asked for that the landscape has no measured run of."""


@dataclass(frozen=True)
class Landscape:
    """A search space, its profile and the measured runs that were recorded in it.

    Attributes:
        name: What was recorded, for people.
        space: The search space.
        profile: The profile of the recorded workload.
        trials: The recorded runs, one a plan.
        complete: Whether every plan of the space is among them.
        max_quality_drop: The limit that the landscape is usually searched under, absolute.
    """

    name: str
    space: SearchSpace
    profile: Profile
    trials: tuple[Trial, ...]
    complete: bool
    max_quality_drop: float
    _by_plan: dict[Assignment, Trial] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the trials and check that they fit the space.

        Raises:
            LandscapeError: A trial is not in the space or is there twice, or `complete` is untrue.
        """
        index: dict[Assignment, Trial] = {}
        for number, trial in enumerate(self.trials):
            if not self.space.feasible(trial.assignment):
                raise LandscapeError(f"landscape {self.name!r}: trial {number} is not a plan of the space")
            if trial.assignment in index:
                raise LandscapeError(f"landscape {self.name!r}: trial {number} repeats an earlier plan")
            index[trial.assignment] = trial
        if self.complete and len(index) != self.space.size:
            raise LandscapeError(
                f"landscape {self.name!r} says it is complete, but holds {len(index)} of "
                f"{self.space.size:.0f} plans"
            )
        object.__setattr__(self, "_by_plan", index)

    def evaluate(self, assignment: Assignment, searcher: str) -> Trial:
        """Return the recorded run of a plan, as if `searcher` had proposed it now.

        Raises:
            NotRecordedError: There is none.
        """
        trial = self._by_plan.get(tuple(assignment))
        if trial is None:
            names = ", ".join(FORMAT_NAMES[index] for index in assignment)
            raise NotRecordedError(
                f"landscape {self.name!r} holds no measured run of the plan ({names}); "
                "record it, or search a complete landscape"
            )
        return replace(trial, searcher=searcher)

    @property
    def identity(self) -> str:
        """The name with a digest of the content: two recordings of a workload differ, though not by name."""
        digest = hashlib.sha256(json.dumps(self.to_data(), sort_keys=True).encode()).hexdigest()
        return f"{self.name} {digest[:8]}"

    def optimum(self, goal: Goal) -> Trial | None:
        """Return the cheapest recorded trial that meets the goal, or `None` where none does."""
        return best_trial(self.trials, goal)

    def save(self, path: str | Path) -> Path:
        """Write the landscape in one step; a name that ends in `.gz` is compressed.

        Raises:
            LandscapeError: The file cannot be written.
        """
        target = Path(path)
        data = json.dumps(self.to_data(), allow_nan=False).encode()
        if target.suffix == ".gz":
            data = gzip.compress(data, mtime=0)
        try:
            write_in_one_step(target, data)
        except OSError as error:
            raise LandscapeError(
                f"cannot write landscape {str(target)!r}: {error.strerror or error}"
            ) from error
        return target

    @classmethod
    def load(cls, path: str | Path) -> Landscape:
        """Read and check a landscape file.

        Raises:
            LandscapeError: The file is missing, cut short, of another version or not valid; says where.
        """
        source = Path(path)
        try:
            with source.open("rb") as raw:
                packed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                if packed:
                    with gzip.open(raw) as stream:
                        data = stream.read(MAX_BYTES + 1)
                else:
                    data = raw.read(MAX_BYTES + 1)
        except (OSError, EOFError) as error:
            reason = (
                "it is cut short" if isinstance(error, EOFError) else getattr(error, "strerror", 0) or error
            )
            raise LandscapeError(f"cannot read landscape {str(source)!r}: {reason}") from error
        if len(data) > MAX_BYTES:
            raise LandscapeError(f"landscape {str(source)!r} has more than {MAX_BYTES // 2**20} MB")
        return _from_json(data, str(source))

    @classmethod
    def from_data(cls, data: Any, source: str) -> Landscape:
        """Check and read what `to_data` gives; `source` names it in errors.

        Raises:
            LandscapeError: It is of another version or not valid; says where.
        """
        return _from_data(data, source)

    def to_data(self) -> dict[str, Any]:
        """Return the landscape as the JSON data that `from_data` reads."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "max_quality_drop": self.max_quality_drop,
            "complete": self.complete,
            "formats": list(FORMAT_NAMES),
            "units": list(self.space.units),
            "mask": self.space.mask.tolist(),
            "baseline": list(self.space.baseline),
            "profile": {
                "time": _nullable(self.profile.time),
                "bytes": self.profile.bytes.tolist(),
                "error": _nullable(self.profile.error),
                "feature_names": list(FEATURES),
                "features": [[float(value) for value in row] for row in self.profile.features],
                "implementations": [[list(cell) for cell in row] for row in self.profile.implementations],
                "baseline_seconds": self.profile.baseline_seconds,
                "baseline_bytes": self.profile.baseline_bytes,
                "reasons": [list(row) for row in self.profile.reasons],
            },
            "trials": {
                "assignment": [list(trial.assignment) for trial in self.trials],
                "ok": [trial.ok for trial in self.trials],
                "time": [_null(trial.time) for trial in self.trials],
                "bytes": [_null(trial.bytes) for trial in self.trials],
                "drop": [_null(trial.drop) for trial in self.trials],
                "searcher": [trial.searcher for trial in self.trials],
            },
        }


Finite = Annotated[float, Field(allow_inf_nan=False)]
Cells = list[list[Finite | None]]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class _ProfileData(_Strict):
    time: Cells
    bytes: list[list[Annotated[int, Field(ge=0)]]]
    error: Cells
    feature_names: list[str]
    features: list[list[Finite]]
    implementations: list[list[list[str]]]
    baseline_seconds: Finite
    baseline_bytes: Annotated[int, Field(ge=0)]
    reasons: list[list[str]]


class _TrialData(_Strict):
    assignment: list[list[int]]
    ok: list[bool]
    time: list[Finite | None]
    bytes: list[Finite | None]
    drop: list[Finite | None]
    searcher: list[str]


class _LandscapeData(_Strict):
    schema_version: Literal["autoprec.landscape/1"] = Field(alias="schema")
    name: str
    max_quality_drop: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    complete: bool
    formats: list[str]
    units: list[str]
    mask: list[list[bool]]
    baseline: list[int]
    profile: _ProfileData
    trials: _TrialData


def _from_json(data: bytes, source: str) -> Landscape:
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LandscapeError(f"landscape {source!r} is not JSON, or cut short: {error}") from error
    return Landscape.from_data(parsed, source)


def _from_data(parsed: Any, source: str) -> Landscape:
    found = parsed.get("schema") if isinstance(parsed, dict) else None
    if found != SCHEMA:
        raise LandscapeError(
            f"landscape {source!r} has schema {found!r}; this version reads {SCHEMA!r}: record it again"
        )
    try:
        content = _LandscapeData.model_validate(parsed)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise LandscapeError(f"landscape {source!r} is not valid: at {place}: {first['msg']}") from error
    _check_shapes(content, source)
    return _build(content, source)


def _check_shapes(content: _LandscapeData, source: str) -> None:
    units, formats = len(content.units), len(content.formats)
    profile, trials = content.profile, content.trials
    expected: list[tuple[str, Sequence[Any], int]] = [
        ("mask", content.mask, units),
        ("baseline", content.baseline, units),
        *((f"profile.{name}", getattr(profile, name), units)
          for name in ("time", "bytes", "error", "features", "implementations", "reasons")),
        *((f"trials.{name}", getattr(trials, name), len(trials.ok))
          for name in ("assignment", "time", "bytes", "drop", "searcher")),
    ]  # fmt: skip
    for name, rows in (
        ("mask", content.mask),
        *(
            (f"profile.{n}", getattr(profile, n))
            for n in ("time", "bytes", "error", "implementations", "reasons")
        ),
    ):
        expected += [(f"{name}.{row}", cells, formats) for row, cells in enumerate(rows)]
    expected += [(f"trials.assignment.{row}", cells, units) for row, cells in enumerate(trials.assignment)]
    for place, values, length in expected:
        if len(values) != length:
            raise LandscapeError(
                f"landscape {source!r} is not valid: at {place}: expected {length} entries, got {len(values)}"
            )
    if unknown := [name for name in content.formats if name not in FORMAT_NAMES]:
        raise LandscapeError(f"landscape {source!r} uses the format {unknown[0]!r}, which this version lacks")
    if tuple(profile.feature_names) != FEATURES:
        raise LandscapeError(
            f"landscape {source!r} has other unit features than this version: record it again"
        )
    if any(not 0 <= index < formats for row in (content.baseline, *trials.assignment) for index in row):
        raise LandscapeError(f"landscape {source!r} is not valid: a format index is not in 0..{formats - 1}")


def _build(content: _LandscapeData, source: str) -> Landscape:
    columns = [FORMAT_NAMES.index(name) for name in content.formats]
    units, profile = len(content.units), content.profile

    def spread(rows: Any, fill: Any, dtype: Any) -> NDArray[Any]:
        table = np.full((units, len(FORMAT_NAMES)), fill, dtype)
        table[:, columns] = np.array(rows, dtype).reshape(units, len(columns))
        return table

    def spread_cells(rows: list[list[Any]], empty: Any) -> list[list[Any]]:
        table = [[empty] * len(FORMAT_NAMES) for _ in range(units)]
        for row, cells in zip(table, rows, strict=True):
            for column, cell in zip(columns, cells, strict=True):
                row[column] = cell
        return table

    mask = spread(content.mask, False, np.bool_)
    baseline = tuple(columns[index] for index in content.baseline)
    if not all(mask[unit, index] for unit, index in enumerate(baseline)):
        raise LandscapeError(f"landscape {source!r} is not valid: at baseline: a format is masked")
    implementations = spread_cells(profile.implementations, [])
    rows = content.trials
    trials = tuple(
        Trial(tuple(columns[i] for i in plan), ok, _nan(time), _nan(held), _nan(drop), searcher)
        for plan, ok, time, held, drop, searcher in zip(
            rows.assignment, rows.ok, rows.time, rows.bytes, rows.drop, rows.searcher, strict=True
        )
    )
    return Landscape(
        name=content.name,
        space=SearchSpace(tuple(content.units), mask, baseline),
        profile=Profile(
            time=spread(profile.time, np.nan, np.float64),
            bytes=spread(profile.bytes, 0, np.int64),
            error=spread(profile.error, np.nan, np.float64),
            features=np.array(profile.features, np.float32).reshape(units, len(FEATURES)),
            implementations=tuple(tuple(tuple(cell) for cell in row) for row in implementations),
            baseline_seconds=profile.baseline_seconds,
            baseline_bytes=profile.baseline_bytes,
            reasons=tuple(tuple(row) for row in spread_cells(profile.reasons, "not recorded")),
        ),
        trials=trials,
        complete=content.complete,
        max_quality_drop=content.max_quality_drop,
    )


def _null(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _nan(value: float | None) -> float:
    return np.nan if value is None else value


def _nullable(table: NDArray[np.float64]) -> list[list[float | None]]:
    return [[_null(value) for value in row] for row in table]
