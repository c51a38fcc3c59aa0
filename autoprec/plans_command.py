"""What `autoprec plans` does and prints, the search for the best aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from autoprec.errors import SettingError
from autoprec.store.records import PlanState, StoredPlan
from autoprec.store.store import Store
from autoprec.terminal import interval_text, make_console, this_user

NEXT: dict[str, PlanState] = {"candidate": "verified", "verified": "deployed"}
"""What a plan is promoted to."""


def run_list(
    store: str | None,
    workload: str | None,
    device: str | None,
    runtime: str | None,
    state: Any,
    job: str | None,
    limit: int,
) -> int:
    """Print plans; return the exit code."""
    console = make_console()
    table = Table("plan", "workload", "kept as", "state", "speedup", "drop", "weights", "runtime", "device")
    with Store.open(store) as opened:
        for plan in opened.plans(
            workload=workload, device_name=device, runtime=runtime, state=state, job_id=job, limit=limit
        ):
            table.add_row(
                str(plan.id), plan.workload, plan.role, plan.state, f"{plan.speedup:.3f}x",
                f"{plan.quality_drop:.4g}", f"{plan.plan_bytes / 1e6:.3g} MB", plan.runtime, plan.device_name,
            )  # fmt: skip
    console.print(table if table.row_count else "The store holds no such plan.")
    return 0


def run_show(number: int, store: str | None) -> int:
    """Print all that the store knows of a plan; return the exit code."""
    console = make_console()
    with Store.open(store) as opened:
        stored, events = opened.plan(number), opened.plan_events(number)
    plan = stored.read()
    evidence = plan.evidence
    assert evidence is not None, "only plans with evidence are stored"
    speedup, over = evidence.speedup, evidence.speedup_over_lossless
    rows = {
        "plan": f"{stored.id} ({stored.role} of job {stored.job_id})",
        "state": stored.state,
        "workload": stored.workload,
        "architecture": stored.architecture,
        "device": f"{stored.device_name}, {evidence.device.threads} threads",
        "runtime": stored.runtime,
        "objective": stored.objective,
        "speedup": interval_text(speedup.value, speedup.low, speedup.high),
        "over lossless": "" if over is None else interval_text(over.value, over.low, over.high),
        "quality drop": f"{stored.quality_drop:.4g} of {evidence.quality.baseline:.4g} ({stored.metric})",
        "weights": f"{stored.plan_bytes / 1e6:.3g} MB of {evidence.baseline_bytes / 1e6:.3g} MB",
    }
    table = Table(show_header=False, box=None)
    for name, value in rows.items():
        if value:
            table.add_row(name, value)
    console.print(table)
    units = Table("unit", "format", "kernels")
    for unit in plan.units:
        units.add_row(
            unit.name, unit.format, ", ".join(dict.fromkeys(m.implementation for m in unit.modules))
        )
    console.print(units)
    trail = Table("when", "who", "state", "note")
    for event in events:
        trail.add_row(
            event.at.isoformat(timespec="seconds"),
            event.who,
            f"{event.before or ''} → {event.after}",
            event.note,
        )
    console.print(trail)
    return 0


def run_export(number: int, out: Path, store: str | None) -> int:
    """Write a plan to a file; return the exit code."""
    with Store.open(store) as opened:
        plan = opened.plan(number).read()
    make_console().print(f"Wrote {plan.save(out)}", soft_wrap=True)
    return 0


def run_diff(first: int, second: int, store: str | None) -> int:
    """Print what two plans run differently; return the exit code: 1 where they differ, as `diff` does."""
    console = make_console()
    with Store.open(store) as opened:
        one, other = (opened.plan(number).read() for number in (first, second))
    ours, theirs = ({unit.name: unit for unit in plan.units} for plan in (one, other))
    table = Table("unit", f"plan {first}", f"plan {second}")
    for name in dict.fromkeys([*ours, *theirs]):
        if ours.get(name) != theirs.get(name):
            table.add_row(name, *(_unit_text(units.get(name)) for units in (ours, theirs)))
    if one.runtime != other.runtime:
        table.add_row("(runtime)", one.runtime, other.runtime)
    console.print(table if table.row_count else "Both plans run every unit alike.")
    return 1 if table.row_count else 0


def run_promote(number: int, to: Any, note: str, store: str | None) -> int:
    """Move a plan on; return the exit code.

    Raises:
        SettingError: There is nothing that follows.
    """
    with Store.open(store) as opened:
        state = opened.plan(number).state
        wanted = to or NEXT.get(state)
        if wanted is None:
            raise SettingError(f"plan {number} is {state}; name what it should become with --to")
        _told(opened.set_plan_state(number, wanted, who=this_user(), note=note))
    return 0


def run_retire(number: int, note: str, store: str | None) -> int:
    """Take a plan out of use; return the exit code."""
    with Store.open(store) as opened:
        _told(opened.set_plan_state(number, "retired", who=this_user(), note=note))
    return 0


def _told(plan: StoredPlan) -> None:
    make_console().print(f"Plan {plan.id} is {plan.state}")


def _unit_text(unit: Any) -> str:
    if unit is None:
        return "–"
    return f"{unit.format} ({', '.join(dict.fromkeys(module.implementation for module in unit.modules))})"
