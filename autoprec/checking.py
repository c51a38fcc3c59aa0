"""Measure a plan again, fresh, and hold its claim against what is measured here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoprec.apply import check_fits, emulated_formats
from autoprec.envs.measure import FRESH_TIMING, Measurement
from autoprec.envs.space import purpose_of
from autoprec.errors import CandidateError
from autoprec.plan import MODULE_RUNTIMES, Plan, Prediction
from autoprec.prepare import Prepared, prepare
from autoprec.runtimes.available import GRAPH_RUNTIMES, MODEL_FILE

SPEED_MARGIN = 0.95
"""A claimed speedup holds where the upper end measured here is at least this share of the claim's lower."""
DROP_MARGIN = 0.1
"""A claimed drop holds where the drop here is at most this share of it, or of 0.1% of quality, larger."""


@dataclass(frozen=True)
class CheckResult:
    """What `check_plan` found.

    Attributes:
        holds: Whether every claim holds here; `None` where the plan claims nothing.
        reasons: A sentence for each claim that does not hold, or for why nothing could be measured.
        measurement: What was measured, or `None` where the plan failed.
        notes: What differs from where the plan was measured.
    """

    holds: bool | None
    reasons: tuple[str, ...]
    measurement: Measurement | None
    notes: tuple[str, ...]


def check_plan(plan: Plan, workload: Any, folder: Path | None = None) -> CheckResult:
    """Measure a plan on this machine.

    Args:
        plan: The plan.
        workload: What `load_workload` takes.
        folder: Where the plan's model file was written, if anywhere: that file is then what is measured.

    Raises:
        WorkloadError: The workload cannot be used.
        PlanError: The plan is for another model.
    """
    claimed = plan.evidence or plan.prediction
    prepared = prepare(workload, purpose_of(claimed.objective if claimed else "latency"))
    check_fits(prepared.measurer.model, plan)
    measurer = prepared.measurer
    written: Path | None = None
    try:
        prepared.use_runtime(plan.runtime)
        if plan.runtime in GRAPH_RUNTIMES and folder is not None:
            from autoprec.runtimes.graph_runtime import plan_of_file  # needs packages that are optional

            if plan_of_file(folder / MODEL_FILE) == plan.key:
                prepared.graph_runtime(plan.runtime).written = written = folder
        emulated = emulated_formats(measurer.model, plan) if plan.runtime in MODULE_RUNTIMES else ()
        measured = measurer.measure(plan, measurer.splits[-1], FRESH_TIMING, timed=not emulated)
    except CandidateError as error:
        return CheckResult(
            False, (f"the plan does not run here: {error}",), None, _differences(plan, prepared)
        )
    reasons = _broken_claims(plan, measured, measurer.baseline_quality(measurer.splits[-1]))
    holds = None if plan.evidence is None or (emulated and not reasons) else not reasons
    notes = _differences(plan, prepared)
    if plan.runtime in GRAPH_RUNTIMES:
        lies = "no model file lies" if folder is None else f"the {MODEL_FILE} that lies"
        other = "" if folder is None else " was not written for it"
        made = f"{lies} beside the plan{other}, so one was made from the plan"
        notes = (made if written is None else f"the model file in {written} is what was measured", *notes)
    if emulated:
        notes = (f"{', '.join(emulated)}: no kernel here, so that the speed was not measured", *notes)
    claim, timing = plan.evidence, measured.timing
    if claim is None or claim.objective == "memory" or timing is None:
        return CheckResult(holds, tuple(reasons), measured, notes)
    if holds and timing.low < SPEED_MARGIN * claim.speedup.low:
        notes = (*notes, "the interval measured here neither contradicts the claimed speedup nor proves it")
    return CheckResult(holds, tuple(reasons), measured, notes)


def _broken_claims(plan: Plan, measured: Measurement, baseline_quality: float) -> list[str]:
    claim = plan.evidence
    if claim is None:
        return []
    reasons = []
    timing = measured.timing
    if timing is not None and claim.objective != "memory" and timing.high < SPEED_MARGIN * claim.speedup.low:
        reasons.append(
            f"speedup: claimed {claim.speedup.value:.2f}x "
            f"({claim.speedup.low:.2f} to {claim.speedup.high:.2f}), "
            f"measured {timing.ratio:.2f}x ({timing.low:.2f} to {timing.high:.2f})"
        )
    allowed = claim.quality.drop
    if claim.max_quality_drop is not None:
        allowed = max(allowed, claim.max_quality_drop)
    slack = max(DROP_MARGIN * abs(allowed), 1e-3 * abs(baseline_quality) * DROP_MARGIN)
    if measured.quality_drop > allowed + slack:
        reasons.append(f"quality drop: claimed at most {allowed:.4g}, measured {measured.quality_drop:.4g}")
    if measured.held_bytes > 1.01 * claim.plan_bytes:
        reasons.append(
            f"memory: claimed {claim.plan_bytes / 1e6:.1f} MB, measured {measured.held_bytes / 1e6:.1f} MB"
        )
    return reasons


def _differences(plan: Plan, prepared: Prepared) -> tuple[str, ...]:
    claim = plan.evidence or plan.prediction
    notes = []
    if claim is None:
        return ("the plan carries no evidence, so there is no claim to hold it to",)
    if isinstance(claim, Prediction):
        speed, drop = claim.speedup, claim.quality_drop
        notes.append(
            "the plan was predicted, not measured: "
            f"{speed.value:.2f}x ({speed.low:.2f} to {speed.high:.2f}), "
            f"drop {drop.value:.4g} ({drop.low:.4g} to {drop.high:.4g})"
        )
    known = plan.runtime in prepared.measurer.runtimes  # or it is not installed here
    here = (prepared.context_for(plan.runtime) if known else prepared.context).device
    there = claim.device
    metric = claim.metric if isinstance(claim, Prediction) else claim.quality.metric
    if (here.name, here.capability) != (there.name, there.capability):
        notes.append(f"measured on {there.name} ({there.capability}); here: {here.name} ({here.capability})")
    if here.threads != there.threads:
        notes.append(f"measured with {there.threads} threads; here: {here.threads}")
    if here.versions != there.versions:
        notes.append(f"measured with {there.versions}; here: {here.versions}")
    if claim.weights != prepared.weights:
        notes.append("the weights differ from those it was measured with")
    if metric != prepared.loaded.quality_name:
        notes.append(f"quality was {metric}; here: {prepared.loaded.quality_name}")
    if claim.shapes != prepared.context.shapes:
        notes.append(f"measured at {'; '.join(claim.shapes)}; here: {'; '.join(prepared.context.shapes)}")
    return tuple(notes)
