"""The search space and the profile of a workload as arrays, and the goal of a search.

These are the words that environments and searchers share. They hold no torch object, so a recorded
landscape can be searched without a model. `U` is the number of units, `K` the number of formats in the
vocabulary (`autoprec.kernels.formats.FORMATS`), `M` modules of a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from autoprec.errors import SettingError
from autoprec.kernels.formats import FORMATS

T = TypeVar("T")

Assignment = tuple[int, ...]
"""Format index of each unit, in execution order."""

Objective = Literal["latency", "throughput", "memory"]
Purpose = Literal["latency", "throughput"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput", "memory")

FORMAT_NAMES: tuple[str, ...] = tuple(FORMATS)

FEATURES: tuple[str, ...] = (
    "is_linear", "is_conv2d", "is_embedding", "depth", "siblings", "log_inputs", "log_outputs",
    "log_rows", "log_parameters", "log_calls", "weight_kurtosis", "weight_max_over_std",
    "channel_spread", "input_max_over_std", "time_share", "byte_share",
)  # fmt: skip
"""Names of the columns of `Profile.features`: structure and statistics, nothing that names a model."""


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Which formats each unit may take.

    Attributes:
        units: Unit names in execution order.
        mask: `[U, K]` bool; True where the searchers may choose the format. Every row has the baseline.
        baseline: Format index of each unit as the model came.
    """

    units: tuple[str, ...]
    mask: NDArray[np.bool_]
    baseline: Assignment

    def choices(self, unit: int) -> tuple[int, ...]:
        """Return the format indices that a unit may take."""
        return tuple(int(index) for index in np.flatnonzero(self.mask[unit]))

    def feasible(self, assignment: Sequence[int]) -> bool:
        """Say whether every unit takes a format that its mask allows."""
        units, formats = self.mask.shape
        return (
            len(assignment) == units
            and all(0 <= index < formats for index in assignment)
            and bool(self.mask[np.arange(units), list(assignment)].all())
        )

    def uniform(self, format_index: int) -> Assignment:
        """Return the plan with one format everywhere it is allowed, the baseline elsewhere."""
        return tuple(
            format_index if self.mask[unit, format_index] else self.baseline[unit]
            for unit in range(len(self.units))
        )

    @property
    def size(self) -> float:
        """Number of plans in the space; a float, infinite beyond 1e308."""
        with np.errstate(over="ignore"):
            return float(np.prod(self.mask.sum(axis=1).astype(np.float64)))


@dataclass(frozen=True, slots=True)
class Profile:
    """What cheap passes learnt about each unit × format before any search.

    Attributes:
        time: `[U, K]` seconds that the unit takes in one run in its fastest implementation of the
            format (smallest, for a memory goal) as a share of the baseline's whole run; NaN where
            refused or emulated.
        bytes: `[U, K]` bytes held by the unit; 0 where refused.
        error: `[U, K]` relative L2 error of the unit's output on the baseline's inputs; NaN where refused.
        features: `[U, len(FEATURES)]` float32, scaled to about -1..1.
        implementations: For unit `u` and format `k`, the implementation of each module; empty where refused.
        baseline_seconds: Median seconds of one baseline run.
        baseline_bytes: Bytes held by the baseline.
        reasons: `[U][K]` why a format is refused or emulated, empty where native.
    """

    time: NDArray[np.float64]
    bytes: NDArray[np.int64]
    error: NDArray[np.float64]
    features: NDArray[np.float32]
    implementations: tuple[tuple[tuple[str, ...], ...], ...]
    baseline_seconds: float
    baseline_bytes: int
    reasons: tuple[tuple[str, ...], ...]

    def plan_bytes(self, space: SearchSpace, assignment: Sequence[int]) -> int:
        """Return the bytes the model holds under a plan: known exactly, without a measured run.

        Tied weights are counted where they lie; a unit's entry holds what all its modules hold.
        """
        rows = np.arange(len(space.units))
        change = self.bytes[rows, list(assignment)] - self.bytes[rows, list(space.baseline)]
        return self.baseline_bytes + int(change.sum())


def purpose_of(objective: str) -> Purpose:
    """Return which example inputs are timed for an objective: a memory goal times those of latency."""
    return "throughput" if objective == "throughput" else "latency"


@dataclass(frozen=True, slots=True)
class Goal:
    """What the search is after.

    Attributes:
        objective: What is made small: time of one run (latency, throughput) or bytes held.
        max_quality_drop: Absolute limit for `best`; always set (1% of the baseline's quality by default).
        whole_front: True where the user gave no limit and wants every limit answered.
        max_bytes: Limit on bytes held, or `None`.
    """

    objective: Objective
    max_quality_drop: float
    whole_front: bool = False
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.objective not in OBJECTIVES:
            raise SettingError(f"unknown objective {self.objective!r}; use one of {', '.join(OBJECTIVES)}")
        if not (np.isfinite(self.max_quality_drop) and self.max_quality_drop >= 0):
            raise SettingError(
                f"max_quality_drop is {self.max_quality_drop}; it must be a finite number, 0 or more"
            )


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured run as searchers see it.

    Attributes:
        assignment: The plan.
        ok: False where the plan failed; the figures are then NaN.
        time: Seconds under the plan ÷ seconds of the baseline, paired (1 / speedup).
        bytes: Bytes held.
        drop: Quality drop, absolute. May be negative.
        searcher: Who proposed it.
        share: Share of the evaluation data that the drop is on. Below 1 it tells a searcher which way to go,
            and the plan meets no goal and is on no front.
        drop_error: Standard deviation of the drop around that on all of the data, absolute.
    """

    assignment: Assignment
    ok: bool
    time: float
    bytes: float
    drop: float
    searcher: str
    share: float = 1.0
    drop_error: float = 0.0

    def cost(self, goal: Goal) -> float:
        """Return what the goal makes small: relative time, or bytes. NaN where the plan failed."""
        return self.bytes if goal.objective == "memory" else self.time

    def meets(self, goal: Goal) -> bool:
        """Say whether the plan ran and keeps the goal's limits, as measured on all of the data."""
        return (
            self.ok
            and self.share == 1
            and self.drop <= goal.max_quality_drop
            and (goal.max_bytes is None or self.bytes <= goal.max_bytes)
        )


def best_trial(trials: Sequence[Trial], goal: Goal) -> Trial | None:
    """Return the cheapest trial that meets the goal, or `None` where none does."""
    return min(
        (trial for trial in trials if trial.meets(goal)), key=lambda trial: trial.cost(goal), default=None
    )


def pareto_front(trials: Sequence[Trial], goal: Goal) -> list[Trial]:
    """Return the trials that no other beats in both cost and drop, cheapest first."""
    usable = [
        trial for trial in trials
        if trial.ok and trial.share == 1 and (goal.max_bytes is None or trial.bytes <= goal.max_bytes)
    ]  # fmt: skip
    return non_dominated(usable, lambda trial: trial.cost(goal), lambda trial: trial.drop)


def non_dominated(items: Iterable[T], cost: Callable[[T], float], drop: Callable[[T], float]) -> list[T]:
    """Return the items that no other beats in both cost and drop, cheapest first."""
    front: list[T] = []
    lowest = np.inf
    for item in sorted(items, key=lambda item: (cost(item), drop(item))):
        if drop(item) < lowest:
            front.append(item)
            lowest = drop(item)
    return front
