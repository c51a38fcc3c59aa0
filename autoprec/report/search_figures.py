"""Figures of the search: the Pareto front, and the best plan so far over the measured runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from autoprec.envs.space import Goal, Trial
from autoprec.plan import Evidence, Plan
from autoprec.report import palette
from autoprec.report.words import interval, number, size
from autoprec.result import TuneResult


def pareto_figure(result: TuneResult) -> go.Figure:
    """Return cost against quality drop: every measured run, the fresh front, the chosen plan, the limit.

    Drops lie on a log axis; those at or below its floor (0 and less among them) lie on the floor.
    """
    memory = result.goal.objective == "memory"
    runs = [
        trial for trial in result.trials if trial.ok and _cost(trial.time, trial.bytes, memory) is not None
    ]
    drops = [trial.drop for trial in runs if math.isfinite(trial.drop)]
    fresh = (result.best, result.lossless, result.bound, *result.front)
    drops += [plan.evidence.quality.drop for plan in fresh if plan is not None and plan.evidence is not None]
    floor = drop_floor(drops, result.goal.max_quality_drop)
    figure = go.Figure()
    for name, (colour, symbol) in palette.searcher_styles(trial.searcher for trial in runs).items():
        own = [trial for trial in runs if trial.searcher == name]
        figure.add_scatter(
            x=[_cost(trial.time, trial.bytes, memory) for trial in own],
            y=[_on_axis(trial.drop, floor) for trial in own],
            mode="markers",
            name=palette.label(name),
            marker={"color": colour, "symbol": symbol, "size": 8, "opacity": 0.75},
            customdata=[_describe(trial) for trial in own],
            hovertemplate="%{customdata}<extra></extra>",
        )
    _add_front(figure, result, floor)
    _add_limits(figure, result.goal, floor)
    named = [
        (result.bound, "no quality limit", "diamond-open", 12),
        (result.lossless, "lossless", "circle-open", 15),
    ]
    if result.best is not None and result.best.key == result.lossless.key:
        named[1] = (result.lossless, "chosen: lossless", "star", 17)
    else:
        named.append((result.best, "chosen", "star", 17))
    costs = [cost for trial in runs if (cost := _cost(trial.time, trial.bytes, memory)) is not None]
    costs += [
        _plan_cost(plan, memory) for plan, *_ in named if plan is not None and plan.evidence is not None
    ]
    for plan, name, symbol, width in named:
        if plan is not None and plan.evidence is not None:
            middle = (min(costs) + max(costs)) / 2
            towards_left = _plan_cost(plan, memory) > middle
            _add_plan(
                figure, plan, plan.evidence, name, symbol, width, memory, floor, towards_left=towards_left
            )
    title = (
        "weights, MB (smaller is better)"
        if memory
        else "speedup over the model as it came (higher is better)"
    )
    figure.update_layout(
        {
            **palette.base_layout(480),
            "xaxis": palette.axis(title, ticksuffix="" if memory else "×"),
            "yaxis": palette.axis(
                "quality drop, log scale (lower is better)",
                type="log",
                **_ticks(drops, result.goal.max_quality_drop, floor),
            ),
            "hovermode": "closest",
            "meta": {"narrow": {"xaxis": {"title": {"text": "weights, MB" if memory else "speedup"}}}},
        }
    )
    return figure


def _add_front(figure: go.Figure, result: TuneResult, floor: float) -> None:
    memory = result.goal.objective == "memory"
    points = sorted(
        (_plan_cost(plan, memory), _on_axis(plan.evidence.quality.drop, floor))
        for plan in result.front
        if plan.evidence is not None
    )
    if not points:
        return
    figure.add_scatter(
        x=[x for x, _ in points],
        y=[y for _, y in points],
        mode="lines+markers",
        name="front, fresh",
        # A limit between two members of the front is served by the one with the smaller drop.
        line={"color": palette.INK, "width": 1.5, "shape": "hv" if memory else "vh"},
        marker={"size": 6, "color": palette.INK},
        hoverinfo="skip",
    )


def _add_plan(
    figure: go.Figure,
    plan: Plan,
    evidence: Evidence,
    name: str,
    symbol: str,
    width: int,
    memory: bool,
    floor: float,
    *,
    towards_left: bool,
) -> None:
    x, y = _plan_cost(plan, memory), max(evidence.quality.drop, floor)
    error = None
    if not memory:
        speedup = evidence.speedup
        error = {
            "type": "data",
            "symmetric": False,
            "array": [speedup.high - speedup.value],
            "arrayminus": [speedup.value - speedup.low],
            "color": palette.INK,
            "thickness": 1.2,
            "width": 4,
        }
    figure.add_scatter(
        x=[x],
        y=[y],
        error_x=error,
        mode="markers",
        name=name,
        marker={
            "symbol": symbol,
            "size": width,
            "color": palette.INK,
            "line": {"color": palette.INK, "width": 2},
        },
        showlegend=False,
        customdata=[
            f"{name}, measured fresh<br>{interval(evidence.speedup)} · "
            f"drop {number(evidence.quality.drop)} · {size(evidence.plan_bytes)}"
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )
    figure.add_annotation(
        x=x,
        y=math.log10(y),
        text=f"<b>{name}</b>",
        font={"color": palette.INK, "size": 13},
        bgcolor=palette.PAPER,
        borderpad=2,
        ax=-26 if towards_left else 26,
        ay=-30,
        xanchor="right" if towards_left else "left",
        arrowcolor=palette.INK,
        arrowwidth=1,
        arrowhead=0,
        standoff=width / 2 + 1,
    )


def _add_limits(figure: go.Figure, goal: Goal, floor: float) -> None:
    line = {"color": palette.LIMIT, "width": 1.5, "dash": "dash"}
    font = {"color": palette.LIMIT, "size": 12}
    if goal.max_quality_drop >= floor:
        figure.add_hline(y=goal.max_quality_drop, line=line, layer="above")
        figure.add_annotation(
            x=0, xref="paper", xanchor="left", y=math.log10(goal.max_quality_drop), yanchor="bottom",
            text=f"limit {number(goal.max_quality_drop)}", font=font, showarrow=False, borderpad=1,
        )  # fmt: skip
    if goal.max_bytes is not None and goal.objective == "memory":
        figure.add_vline(x=goal.max_bytes / 1e6, line=line, layer="above")
        figure.add_annotation(
            x=goal.max_bytes / 1e6, xanchor="left", y=1, yref="paper", yanchor="top",
            text=f"limit {size(goal.max_bytes)}", font=font, showarrow=False,
        )  # fmt: skip


def progress_figure(result: TuneResult) -> go.Figure:
    """Return the best plan so far within the limits over the measured runs, for each searcher and the job."""
    goal = result.goal
    memory = goal.objective == "memory"
    numbered = list(enumerate(result.trials, start=1))
    figure = go.Figure()
    whole = _best_so_far(numbered, goal, len(numbered))
    if whole:
        figure.add_scatter(
            x=[x for x, _ in whole], y=[y for _, y in whole], mode="lines", name="whole job", opacity=0.25,
            line={"color": palette.INK, "width": 8, "shape": "hv"}, hoverinfo="skip",
        )  # fmt: skip
    for name, (colour, symbol) in palette.searcher_styles(trial.searcher for trial in result.trials).items():
        own = [(run, trial) for run, trial in numbered if trial.searcher == name]
        steps = _best_so_far(own, goal, len(numbered))
        if not steps:
            continue
        found = [(run, trial) for run, trial in own if trial.meets(goal)]
        figure.add_scatter(
            x=[run for run, _ in found],
            y=[_cost(trial.time, trial.bytes, memory) for _, trial in found],
            mode="markers",
            name=palette.label(name),
            legendgroup=palette.label(name),
            showlegend=False,
            marker={"color": colour, "symbol": symbol, "size": 7, "opacity": 0.55},
            customdata=[f"run {run}: {_describe(trial)}" for run, trial in found],
            hovertemplate="%{customdata}<extra></extra>",
        )
        figure.add_scatter(
            x=[x for x, _ in steps], y=[y for _, y in steps], mode="lines", name=palette.label(name),
            line={"color": colour, "width": 1.8, "shape": "hv"}, legendgroup=palette.label(name),
            hoverinfo="skip",
        )  # fmt: skip
    title = "smallest weights so far, MB" if memory else "best speedup so far"
    figure.update_layout(
        {
            **palette.base_layout(400),
            "xaxis": palette.axis("measured run of the job", rangemode="tozero"),
            "yaxis": palette.axis(title, ticksuffix="" if memory else "×"),
            "hovermode": "closest",
        }
    )
    return figure


def _best_so_far(numbered: Sequence[tuple[int, Trial]], goal: Goal, last: int) -> list[tuple[int, float]]:
    """Return (run, best cost so far) at each improvement, and at the last run of the job."""
    memory = goal.objective == "memory"
    best: Trial | None = None
    steps: list[tuple[int, float]] = []
    for run, trial in numbered:
        if trial.meets(goal) and (best is None or trial.cost(goal) < best.cost(goal)):
            value = _cost(trial.time, trial.bytes, memory)
            if value is not None:
                best = trial
                steps.append((run, value))
    return [*steps, (last, steps[-1][1])] if steps else []


def _cost(time: float, held: float, memory: bool) -> float | None:
    """Return what the cost axis shows: MB, or speedup; `None` where it is not known."""
    if memory:
        return held / 1e6 if math.isfinite(held) else None
    return 1 / time if math.isfinite(time) and time > 0 else None


def _describe(trial: Trial) -> str:
    speedup = number(_cost(trial.time, trial.bytes, False))
    judged = "" if trial.share == 1 else f" on {trial.share:.0%} of the data"
    return (
        f"{palette.label(trial.searcher)}, run of the search<br>{speedup}× · "
        f"drop {number(trial.drop)}{judged} · {size(trial.bytes)}"
    )


def _plan_cost(plan: Plan, memory: bool) -> float:
    assert plan.evidence is not None
    return plan.evidence.plan_bytes / 1e6 if memory else plan.evidence.speedup.value


def drop_floor(drops: Sequence[float], limit: float) -> float:
    """Return the lowest drop that the log axis tells apart, a power of ten.

    It is at most 3 decades below the limit, so that a drop of next to nothing does not stretch the axis.
    """
    positive = [drop for drop in drops if drop > 0 and math.isfinite(drop)]
    scale = limit if limit > 0 else max(positive, default=1.0)
    lowest = min([*positive, scale / 3])
    return float(10.0 ** math.floor(math.log10(max(lowest, scale / 1000))))


def _on_axis(drop: float, floor: float) -> float | None:
    return max(drop, floor) if math.isfinite(drop) else None


def _ticks(drops: Sequence[float], limit: float, floor: float) -> dict[str, list[float] | list[str]]:
    """Return ticks at powers of ten; the lowest stands for everything at or below it."""
    low, high = round(math.log10(floor)), math.log10(max([*drops, limit, floor * 10]))
    values = [10.0**power for power in range(low, math.ceil(high) + 1)]
    texts = [f"≤ {number(floor)}", *(number(value) for value in values[1:])]
    return {"tickvals": values, "ticktext": texts, "range": [low - 0.12, high + 0.55]}
