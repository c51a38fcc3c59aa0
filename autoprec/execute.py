"""Execute one plan and write down what came of it, success or failure."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from autoprec.envs.measure import Measurer
from autoprec.envs.slicing import SliceFirst
from autoprec.envs.space import Assignment, Trial
from autoprec.envs.timing import TimingSettings
from autoprec.errors import CandidateError
from autoprec.plan import Plan
from autoprec.store.records import Run
from autoprec.workload import Split


@dataclass(frozen=True)
class RunRequest:
    """A run to make.

    Attributes:
        plan: What to run. Its formats are native: emulated ones are never in a search space.
        searcher: Who proposed it.
        split: Part of the data that quality is judged on.
        timing: How long to time.
        fresh: Measured again after the search: the workload's further metrics are computed as well.
        lossless: Time against this plan too; both candidates are alive while that lasts.
        slices: Judges it, on a slice of the data first where that pays; all of the data by default.
        judged_for: Who proposed it, for `slices`.
    """

    plan: Plan
    searcher: str
    split: Split
    timing: TimingSettings
    fresh: bool = False
    lossless: Plan | None = None
    slices: SliceFirst | None = None
    judged_for: str | None = None


def execute(measurer: Measurer, request: RunRequest) -> Run:
    """Measure a plan and return the run; a candidate's failure is a run too, with its reason."""
    started = time.perf_counter()
    slices, judge = request.slices, None
    if slices is not None:
        judge = partial(slices.judge, measurer, proposer=request.judged_for)
    try:
        found = measurer.measure(
            request.plan,
            request.split,
            request.timing,
            reported=request.fresh,
            reference=request.lossless,
            judge=judge,
        )
    except CandidateError as error:
        return failed_run(request, str(error), time.perf_counter() - started)
    speed, over = found.timing, found.over_reference
    assert speed is not None, "a plan of native formats is always timed"
    return Run(
        plan_key=request.plan.key,
        formats=tuple(unit.format for unit in request.plan.units),
        status="ok",
        split=request.split,
        fresh=request.fresh,
        searcher=request.searcher,
        baseline_seconds=speed.a_seconds,
        plan_seconds=speed.b_seconds,
        speedup=speed.ratio,
        speedup_low=speed.low,
        speedup_high=speed.high,
        pairs=speed.pairs,
        over_lossless=over.ratio if over else None,
        over_lossless_low=over.low if over else None,
        over_lossless_high=over.high if over else None,
        held_bytes=found.held_bytes,
        quality=found.quality,
        quality_drop=found.quality_drop,
        quality_share=found.quality_share,
        slice_drop=found.slice_drop,
        reported=found.reported,
        wall_seconds=time.perf_counter() - started,
    )


def failed_run(request: RunRequest, reason: str, seconds: float) -> Run:
    """Return the run of a plan that failed after `seconds`."""
    return Run(
        plan_key=request.plan.key,
        formats=tuple(unit.format for unit in request.plan.units),
        status="failed",
        reason=reason,
        split=request.split,
        fresh=request.fresh,
        searcher=request.searcher,
        wall_seconds=seconds,
    )


def trial_of(run: Run, assignment: Assignment, drop_error: float = 0.0) -> Trial:
    """Return a measured run as searchers see it; `drop_error` as in `Trial`."""
    nan = float("nan")
    failed = run.status == "failed" or run.speedup is None
    return Trial(
        assignment=assignment,
        ok=not failed,
        time=nan if run.speedup is None else 1.0 / run.speedup,
        bytes=nan if run.held_bytes is None else float(run.held_bytes),
        drop=nan if run.quality_drop is None else run.quality_drop,
        searcher=run.searcher,
        share=run.quality_share,
        drop_error=drop_error,
    )
