"""The tables of the report, as rows of text that the template lays out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoprec.envs.space import FORMAT_NAMES
from autoprec.kernels.formats import FORMATS
from autoprec.plan import Evidence, Interval, Plan
from autoprec.report.unit_figures import error_words, plan_assignment, saved
from autoprec.report.words import UNKNOWN, composition, count, number, seconds, share, size, smaller
from autoprec.result import TuneResult

NAMED = 6
"""Units named one by one beside a reason, before the rest are counted."""


class Cell(NamedTuple):
    """A figure, and what belongs under it."""

    value: str
    detail: str = ""


@dataclass(frozen=True)
class Row:
    """One plan of the evidence table."""

    roles: str
    chosen: bool
    formats: tuple[tuple[str, int], ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class EvidenceTable:
    """Every plan that was measured fresh: one row a plan, whatever roles it has."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def evidence_table(result: TuneResult) -> EvidenceTable:
    """Return the fresh figures of the best plan, the best lossless one, the bound and the front."""
    roles: dict[str, list[str]] = defaultdict(list)
    plans: dict[str, Plan] = {}
    named = [("best", result.best), ("best lossless", result.lossless), ("no quality limit", result.bound)]
    for role, plan in [*named, *(("front", plan) for plan in result.front)]:
        if plan is not None and plan.evidence is not None:
            plans.setdefault(plan.key, plan)
            roles[plan.key].append(role)
    metrics = list(dict.fromkeys(name for plan in plans.values() for name in _reported(plan)))
    rows = []
    for key, plan in plans.items():
        assert plan.evidence is not None
        rows.append(
            Row(
                roles=", ".join(roles[key]),
                chosen="best" in roles[key],
                formats=tuple(composition(plan, FORMAT_NAMES)),
                cells=_cells(plan.evidence, metrics),
            )
        )
    columns = ("plan", "speedup", "over lossless", "quality drop", "quality", *metrics, "weights", "found by")
    return EvidenceTable(columns, tuple(rows))


def _cells(evidence: Evidence, metrics: list[str]) -> tuple[Cell, ...]:
    quality = evidence.quality
    pairs = [(quality.baseline, quality.plan), *(quality.reported.get(name) for name in metrics)]
    return (
        _interval(evidence.speedup),
        _interval(evidence.speedup_over_lossless),
        Cell(number(quality.drop, 3)),
        *(Cell(number(pair[1]), f"was {number(pair[0])}") if pair else Cell(UNKNOWN) for pair in pairs),
        Cell(size(evidence.plan_bytes), smaller(evidence.baseline_bytes, evidence.plan_bytes)),
        Cell(evidence.searcher),
    )


def _interval(value: Interval | None) -> Cell:
    return Cell(f"{value.value:.2f}×", f"[{value.low:.2f}, {value.high:.2f}]") if value else Cell(UNKNOWN)


def _reported(plan: Plan) -> dict[str, tuple[float, float]]:
    return plan.evidence.quality.reported if plan.evidence is not None else {}


@dataclass(frozen=True)
class UnitRow:
    """One unit of the plan."""

    name: str
    format: str
    kernels: str
    modules: int
    saved: str
    error: str
    held: str


def unit_rows(result: TuneResult, plan: Plan) -> list[UnitRow]:
    """Return every unit with what the plan does to it, in execution order."""
    assignment = plan_assignment(result, plan)
    gain, profile = saved(result, assignment), result.profile
    memory = result.goal.objective == "memory"
    rows = []
    for u, k in enumerate(assignment):
        kernels = profile.implementations[u][k]
        rows.append(
            UnitRow(
                name=result.space.units[u],
                format=FORMAT_NAMES[k],
                kernels=", ".join(dict.fromkeys(kernels)) or UNKNOWN,
                modules=len(kernels),
                saved=size(float(gain[u])) if memory else share(float(gain[u])),
                error=error_words(float(profile.error[u, k])),
                held=size(float(profile.bytes[u, k])),
            )
        )
    return rows


def total_saved(result: TuneResult, plan: Plan) -> str:
    """Return what the plan's formats save together, as the profile estimates it."""
    total = float(np.nansum(saved(result, plan_assignment(result, plan))))
    return size(total) if result.goal.objective == "memory" else share(total)


@dataclass(frozen=True)
class FormatRow:
    """How far one format can be used: the number of units, and why not in the others."""

    name: str
    summary: str
    offered: int
    reasons: tuple[tuple[str, str], ...]


def format_rows(result: TuneResult) -> list[FormatRow]:
    """Return for each format in how many units it could be chosen, and (reason, units) for the others."""
    space, profile = result.space, result.profile
    rows = []
    for k, name in enumerate(FORMAT_NAMES):
        units: dict[str, list[str]] = defaultdict(list)
        for u, unit in enumerate(space.units):
            if space.mask[u, k]:
                continue
            native = np.isfinite(profile.time[u, k])
            reason = profile.reasons[u][k] or (
                "not asked for, or another format is faster and as exact" if native else "refused"
            )
            units[reason].append(unit)
        reasons = tuple((reason, _named(names, len(space.units))) for reason, names in units.items())
        rows.append(FormatRow(name, FORMATS[name].summary, int(space.mask[:, k].sum()), reasons))
    return rows


def failure_rows(result: TuneResult) -> list[tuple[str, str, str]]:
    """Return (reason, how many plans, formats of the first of them), the most frequent reason first."""
    grouped: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for formats, reason in result.failures:
        grouped[reason or "no reason was recorded"].append(formats)
    rows = []
    for reason, plans in sorted(grouped.items(), key=lambda item: -len(item[1])):
        first = plans[0]
        kinds = ", ".join(f"{first.count(name)} {name}" for name in dict.fromkeys(first))
        rows.append((reason, count(len(plans), "plan"), kinds))
    return rows


def left_rows(result: TuneResult) -> list[tuple[str, str]]:
    """Return (reason, modules) of what no unit covers: every module is named."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for module, reason in result.left.items():
        grouped[reason].append(module or "the model itself")
    return [(reason, ", ".join(modules)) for reason, modules in grouped.items()]


@dataclass(frozen=True)
class Phase:
    """Where a part of the wall time went."""

    name: str
    time: str
    percent: float


def phases(result: TuneResult) -> list[Phase]:
    """Return where the wall time of this process went."""
    spent = result.spending
    parts = (
        ("loading and setting up", spent.setup),
        ("profiling the units", spent.profile),
        ("measuring plans", spent.measuring),
        ("thinking", spent.thinking),
        ("measuring the winners again", spent.fresh),
    )
    total = sum(value for _, value in parts) or 1.0
    return [Phase(name, seconds(value), 100 * value / total) for name, value in parts]


def _named(names: Iterable[str], everything: int) -> str:
    listed = list(names)
    if len(listed) == everything and everything > 1:
        return f"all {everything} units"
    rest = len(listed) - NAMED
    if rest > 1:
        return f"{', '.join(listed[:NAMED])} and {rest} more"
    return ", ".join(listed)
