"""Execute one plan and write down what came of it, success or failure."""

from __future__ import annotations

import time

from autoprec.envs.measure import Measurer
from autoprec.envs.timing import PairedTiming, TimingSettings
from autoprec.errors import CandidateError
from autoprec.plan import Plan
from autoprec.store.records import Run
from autoprec.workload import Split


def execute(
    measurer: Measurer,
    plan: Plan,
    *,
    searcher: str,
    split: Split,
    timing: TimingSettings,
    fresh: bool = False,
    lossless: Plan | None = None,
) -> Run:
    """Measure a plan and return the run; a candidate's failure is a run too, with its reason.

    Args:
        measurer: Measures it.
        plan: What to run. Its formats are native: emulated ones are never in a search space.
        searcher: Who proposed it.
        split: Part of the data that quality is judged on.
        timing: How long to time.
        fresh: Measured again after the search: the workload's further metrics are computed as well.
        lossless: Time against this plan too; both candidates are alive while that lasts.
    """
    started = time.perf_counter()
    over: PairedTiming | None = None
    try:
        found = measurer.measure(plan, split, timing, reported=fresh)
        if lossless is not None:
            with measurer.executable(lossless) as reference, measurer.executable(plan) as candidate:
                over = measurer.time(reference, candidate, timing)
    except CandidateError as error:
        seconds = time.perf_counter() - started
        return failed_run(plan, str(error), searcher=searcher, split=split, fresh=fresh, seconds=seconds)
    speed = found.timing
    assert speed is not None, "a plan of native formats is always timed"
    return Run(
        plan_key=plan.key,
        formats=tuple(unit.format for unit in plan.units),
        status="ok",
        split=split,
        fresh=fresh,
        searcher=searcher,
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
        reported=found.reported,
        wall_seconds=time.perf_counter() - started,
    )


def failed_run(plan: Plan, reason: str, *, searcher: str, split: Split, fresh: bool, seconds: float) -> Run:
    """Return the run of a plan that failed after `seconds`."""
    return Run(
        plan_key=plan.key,
        formats=tuple(unit.format for unit in plan.units),
        status="failed",
        reason=reason,
        split=split,
        fresh=fresh,
        searcher=searcher,
        wall_seconds=seconds,
    )
