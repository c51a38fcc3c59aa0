"""The commands that ask the store; nothing is measured here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from autoprec.api import best_plan, predict_plan
from autoprec.errors import SettingError
from autoprec.plan import Plan
from autoprec.predicting import SURE
from autoprec.terminal import interval_text, make_console


def run_best(
    workload: str,
    objective: Any,
    max_quality_drop: str | None,
    max_memory: str | None,
    runtime: str,
    store: str | None,
    out: Path | None,
    *,
    predict: bool,
    device: str | None = None,
) -> int:
    """Show the best plan of the store, measured or predicted; return the exit code.

    That is 1 where there is none, or none that is expected to keep the limits.

    Raises:
        SettingError: An option cannot be used so.
    """
    console = make_console()
    wanted = None if runtime == "any" else runtime
    if predict:
        if max_quality_drop is None:
            raise SettingError("plans best --predict needs --max-quality-drop: 0.005, or 1%")
        plan = predict_plan(
            workload, objective=objective, max_quality_drop=max_quality_drop, max_memory=max_memory,
            runtime=wanted, device=device, store=store,
        )  # fmt: skip
    else:
        plan = best_plan(
            workload,
            objective=objective,
            max_quality_drop=_limit(max_quality_drop),
            max_memory=max_memory,
            runtime=wanted,
            device=device,
            store=store,
        )
    if plan is None:
        what = "whole profile" if predict else "such plan"
        where = "here" if device is None else f"on {device}"
        console.print(
            f"The store holds no {what} for {workload} {where}; autoprec tune measures one", soft_wrap=True
        )
        return 1
    if plan.prediction is not None and plan.prediction.keeps_limits < SURE:
        console.print(f"No plan is expected to keep the limits with {SURE:.0%}; the most probable:")
    show_plan(console, plan)
    if out is not None:
        console.print(f"Plan: {plan.save(out)}", soft_wrap=True)
    return 0 if plan.prediction is None or plan.prediction.keeps_limits >= SURE else 1


def show_plan(console: Console, plan: Plan) -> None:
    """Show what a plan runs in, and what was measured of it, or is expected."""
    counts: dict[str, int] = {}
    for unit in plan.units:
        counts[unit.format] = counts.get(unit.format, 0) + 1
    listed = ", ".join(f"{count} units {name}" for name, count in counts.items())
    console.print(f"{listed}, run by {plan.runtime}", soft_wrap=True)
    if (known := plan.evidence) is not None:
        speed = known.speedup
        console.print(
            f"measured {known.measured_at} on {known.device.name}: "
            f"{interval_text(speed.value, speed.low, speed.high)}, drop {known.quality.drop:.4g}, "
            f"{known.plan_bytes / 1e6:.1f} MB",
            soft_wrap=True,
        )
    if (expected := plan.prediction) is not None:
        speed, drop = expected.speedup, expected.quality_drop
        console.print(
            f"PREDICTED from {expected.runs} measured runs, not measured: "
            f"{interval_text(speed.value, speed.low, speed.high)}, drop {drop.value:.4g} "
            f"[{drop.low:.4g}, {drop.high:.4g}], {expected.plan_bytes / 1e6:.1f} MB; runs and "
            f"keeps the limits (drop {expected.max_quality_drop:.4g}) with a probability of "
            f"{expected.keeps_limits:.0%}. "
            "autoprec check measures it",
            soft_wrap=True,
        )


def _limit(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise SettingError(
            f"max_quality_drop is {text!r}; give an absolute number (0.005), or a percentage with --predict"
        ) from None
