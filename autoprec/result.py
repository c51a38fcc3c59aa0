"""What a tuning job gives back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autoprec.envs.plans import assignment_of
from autoprec.envs.space import Goal, Profile, SearchSpace, Trial
from autoprec.plan import Interval, Plan


@dataclass(frozen=True)
class Spending:
    """Where the wall time of this process went, in seconds; what a resumed job used before is not in it."""

    setup: float
    profile: float
    measuring: float
    thinking: float
    fresh: float

    @property
    def overhead(self) -> float:
        """Share of the time that was not measuring, profiling aside."""
        total = self.measuring + self.thinking + self.fresh
        return self.thinking / total if total > 0 else 0.0


@dataclass(frozen=True)
class RuntimeOutcome:
    """What one runtime came to.

    Attributes:
        name: The runtime.
        best: Its best plan for the goal, or `None`.
        lossless: Its best lossless plan; `None` where it was left out.
        trials: How many plans were measured in it.
        seconds: What one of them took in all, building it and judging it included; the median.
        reason: Why it was left out, or not searched to the end; empty otherwise.
    """

    name: str
    best: Plan | None
    lossless: Plan | None
    trials: int
    seconds: float
    reason: str


@dataclass(frozen=True)
class TuneResult:
    """The outcome of `autoprec.tune`.

    Attributes:
        best: The plan for the goal, measured fresh; `None` where no plan meets it.
        lossless: The best plan with the same numbers as the model as it came.
        front: The Pareto front of the measured plans, each measured fresh, cheapest first.
        bound: The fastest (smallest) plan measured fresh, whatever its quality; every unit in its fastest
            format was among them. `None` where that one was not measured.
        notes: What the user should know, in sentences.
        goal: What was searched for.
        space: The units and the formats they could take.
        profile: What was learnt about them before the search.
        trials: Every measured run of the search, in order.
        failures: (formats by unit, reason) of the runs that failed.
        left: Modules that no unit covers, path to the reason.
        workload: Reference of the workload.
        baseline_quality: Quality of the model as it came, on the search split.
        quality_name: What quality means.
        job_id: The job in the store.
        store: Where the store is.
        cached: How many runs were answered from the store.
        spending: Where the time went.
        runtimes: What each runtime came to. Space, profile and trials are those of the best plan's runtime.
        artefacts: Files that run the best plan without this package.
    """

    best: Plan | None
    lossless: Plan
    front: tuple[Plan, ...]
    bound: Plan | None
    notes: tuple[str, ...]
    goal: Goal
    space: SearchSpace
    profile: Profile
    trials: tuple[Trial, ...]
    failures: tuple[tuple[tuple[str, ...], str], ...]
    left: dict[str, str]
    workload: str
    baseline_quality: float
    quality_name: str
    job_id: str
    store: str
    cached: int
    spending: Spending
    runtimes: tuple[RuntimeOutcome, ...] = ()
    artefacts: tuple[Path, ...] = ()

    @property
    def tried(self) -> int:
        """How many plans were measured in the search, in all runtimes."""
        return sum(outcome.trials for outcome in self.runtimes) or len(self.trials)

    @property
    def compared(self) -> bool:
        """Whether lower precision was measured at all, in the search or after it, where the space has any."""
        lossless = self.lossless.formats
        same = (self.space.baseline, assignment_of(tuple(lossless.values())))
        kept = (self.best, self.bound, *self.front)
        return (
            self.space.size <= 1
            or any(trial.assignment not in same for trial in self.trials)
            or any(plan is not None and plan.formats != lossless for plan in kept)
        )


def runtime_rows(result: TuneResult) -> list[tuple[str, ...]]:
    """Return a row for each runtime: its name, and what it came to.

    That is the speedup of its lossless plan, of its best plan, of the second over the first, the drop, the
    number of plans measured, what one of them took, and why it was left out.
    """
    rows: list[tuple[str, ...]] = []
    for outcome in result.runtimes:
        best = outcome.best.evidence if outcome.best is not None else None
        lossless = outcome.lossless.evidence if outcome.lossless is not None else None
        over = best.speedup_over_lossless if best is not None else None
        rows.append(
            (
                outcome.name,
                _shown(lossless.speedup) if lossless is not None else "–",
                _shown(best.speedup) if best is not None else "–",
                _shown(over) if over is not None else "–",
                f"{best.quality.drop:.4g}" if best is not None else "–",
                str(outcome.trials),
                f"{outcome.seconds:.1f} s" if outcome.trials else "–",
                outcome.reason,
            )
        )
    return rows


def _shown(interval: Interval) -> str:
    return f"{interval.value:.2f}x [{interval.low:.2f}, {interval.high:.2f}]"
