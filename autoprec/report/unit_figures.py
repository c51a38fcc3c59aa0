"""Figures unit by unit: maps of units × formats, and what each unit gains and loses under the plan."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from autoprec.agents.warm_start import LOSSLESS_ERROR
from autoprec.envs.plans import assignment_of
from autoprec.envs.space import FORMAT_NAMES, Assignment
from autoprec.plan import Plan
from autoprec.report import palette
from autoprec.report.words import UNKNOWN, number, share, size
from autoprec.result import TuneResult

WIDE, WIDER, NARROW = 30, 46, 17
"""Characters of a unit's name beside a map, beside the full-width figure, and on a phone."""


def plan_assignment(result: TuneResult, plan: Plan) -> Assignment:
    """Return a plan's format index for each unit of the space; a unit that it lacks keeps its own format."""
    formats = plan.formats
    return tuple(
        assignment_of([formats[unit]])[0] if unit in formats else own
        for unit, own in zip(result.space.units, result.space.baseline, strict=True)
    )


def shown_formats(result: TuneResult) -> list[int]:
    """Return the formats that at least one unit can run, natively or emulated, or has as it came."""
    return [
        k
        for k in range(len(FORMAT_NAMES))
        if np.isfinite(result.profile.error[:, k]).any() or result.space.mask[:, k].any()
    ]


def saved(result: TuneResult, assignment: Assignment) -> NDArray[np.float64]:
    """Return what each unit saves `[U]`: a share of the baseline's run, or bytes for a memory goal.

    It is estimated from the profile, against the unit's own format in its best kernel, so that a better
    kernel for the same numbers counts as no gain. NaN where the time is not known.
    """
    rows = np.arange(len(assignment))
    table = _cost_table(result)
    gain: NDArray[np.float64] = table[rows, list(result.space.baseline)] - table[rows, list(assignment)]
    return gain


def _cost_table(result: TuneResult) -> NDArray[np.float64]:
    profile = result.profile
    if result.goal.objective != "memory":
        return profile.time
    # What an emulated format would hold is not known: emulating it holds the weights as they came.
    native = np.isfinite(profile.time) | result.space.mask
    return np.where(native, profile.bytes.astype(np.float64), np.nan)


def sensitivity_map(result: TuneResult, plan: Plan) -> go.Figure:
    """Return the map of local output errors on a log scale, with the plan's formats marked."""
    error = result.profile.error
    usable = np.isfinite(error)
    powers = _decades(error)
    logs = np.log10(np.maximum(np.where(usable, error, np.nan), 10.0 ** powers[0]))
    ticks = ["same", *(share(10.0**power) for power in powers[1:])]
    bar = {"tickvals": powers, "ticktext": ticks, "title": {"text": "local output error", "side": "top"}}
    return _unit_map(result, plan, logs, (powers[0], powers[-1]), bar)


def cost_map(result: TuneResult, plan: Plan) -> go.Figure:
    """Return the map of time shares (or of bytes, for a memory goal), with the plan's formats marked."""
    table = _cost_table(result)
    memory = result.goal.objective == "memory"
    shown = table / 1e6 if memory else 100 * table
    top = float(np.max(shown[np.isfinite(shown)], initial=0.0)) or 1.0
    title = "MB held" if memory else "share of the run's time"
    bar = {"title": {"text": title, "side": "top"}, "ticksuffix": "" if memory else "%", "nticks": 5}
    return _unit_map(result, plan, shown, (0.0, top), bar)


def _unit_map(
    result: TuneResult,
    plan: Plan,
    values: NDArray[np.float64],
    limits: tuple[float, float],
    bar: dict[str, Any],
) -> go.Figure:
    columns, assignment = shown_formats(result), plan_assignment(result, plan)
    rows = list(range(len(assignment)))
    height, font = _row_height(len(rows))
    figure = go.Figure()
    figure.add_heatmap(
        z=[[_none(values[u, k]) for k in columns] for u in rows],
        x=list(range(len(columns))),
        y=rows,
        zmin=limits[0],
        zmax=limits[1],
        colorscale="Viridis",
        xgap=2,
        ygap=1 if height < 16 else 2,
        customdata=[[_describe(result, u, k) for k in columns] for u in rows],
        hovertemplate="%{customdata}<extra></extra>",
        colorbar={
            **bar,
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "xref": "paper",
            "y": 0,
            "yanchor": "top",
            "ypad": 14,
            "xpad": 0,
            "thickness": 10,
            "len": 1,
            "outlinewidth": 0,
            "tickfont": {"size": 11, "color": palette.MUTED},
        },
    )
    marked = [(columns.index(k), u) for u, k in enumerate(assignment) if k in columns]
    figure.add_scatter(
        x=[x for x, _ in marked],
        y=[y for _, y in marked],
        mode="markers",
        marker={
            "size": min(11, height - 4),
            "color": "#ffffff",
            "line": {"color": "#111111", "width": 1.6},
            "symbol": "circle",
        },
        hoverinfo="skip",
        showlegend=False,
    )
    layout = _unit_layout(result, WIDE, height, font, top=112, bottom=64, right=40)
    layout["xaxis"] = palette.axis(
        "",
        side="top",
        tickvals=list(range(len(columns))),
        ticktext=[FORMAT_NAMES[k] for k in columns],
        tickangle=-55,
        ticklabeloverflow="allow",
        showgrid=False,
        range=[-0.5, len(columns) - 0.5],
        fixedrange=True,
    )
    figure.update_layout(layout)
    return figure


def gains_figure(result: TuneResult, plan: Plan) -> go.Figure:
    """Return what each unit saves and its local error under the plan, side by side, in execution order."""
    assignment = plan_assignment(result, plan)
    gain = saved(result, assignment)
    memory = result.goal.objective == "memory"
    scaled = gain / 1e6 if memory else 100 * gain
    powers = _decades(result.profile.error[range(len(assignment)), assignment])
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.04)
    for k in dict.fromkeys(sorted(assignment)):
        units = [u for u, chosen in enumerate(assignment) if chosen == k]
        name = FORMAT_NAMES[k]
        common = {
            "y": units,
            "name": name,
            "legendgroup": name,
            "customdata": [_describe(result, u, k) for u in units],
            "hovertemplate": "%{customdata}<extra></extra>",
        }
        figure.add_bar(
            x=[_none(scaled[u]) for u in units], orientation="h", showlegend=False, row=1, col=1,
            marker={"color": palette.format_colour(name), "line": {"width": 0}}, **common,
        )  # fmt: skip
        errors = [result.profile.error[u, k] for u in units]
        figure.add_scatter(
            x=[max(float(error), 10.0 ** powers[0]) if math.isfinite(error) else None for error in errors],
            mode="markers", marker={"color": palette.format_colour(name), "size": 9}, row=1, col=2, **common,
        )  # fmt: skip
    height, font = _row_height(len(assignment))
    layout = _unit_layout(result, WIDER, height, font, top=96, bottom=24, right=14)
    title = "MB saved" if memory else "time saved, % of the run"
    layout["xaxis"] = palette.axis(
        title, side="top", zeroline=True, zerolinecolor=palette.MUTED, fixedrange=True
    )
    layout["xaxis2"] = palette.axis(
        "local output error",
        side="top",
        type="log",
        fixedrange=True,
        range=[powers[0] - 0.3, powers[-1] + 0.1],
        tickvals=[10.0**power for power in powers],
        ticktext=["none", *(share(10.0**power) for power in powers[1:])],
    )
    layout["yaxis"]["showgrid"] = True
    layout["yaxis2"] = {**layout["yaxis"], "showticklabels": False, "matches": "y"}
    layout["meta"]["narrow"] |= {
        "xaxis": {"title": {"text": "saved, MB" if memory else "saved, %"}},
        "xaxis2": {
            "title": {"text": "local error"},
            "ticktext": ["none", *("" if power % 2 else share(10.0**power) for power in powers[1:])],
            "tickangle": 0,
        },
    }
    layout |= {"barmode": "overlay", "bargap": 0.25, "hovermode": "closest"}
    layout["legend"] = {**layout["legend"], "y": 1, "yref": "container", "yanchor": "top"}
    figure.update_layout(layout)
    return figure


def _unit_layout(
    result: TuneResult, width: int, height: int, font: int, *, top: int, bottom: int, right: int
) -> dict[str, Any]:
    rows = len(result.space.units)
    layout = palette.base_layout(top + bottom + rows * height)
    layout["margin"] = {"l": 8, "r": right, "t": top, "b": bottom}
    layout["yaxis"] = palette.axis(
        "",
        tickvals=list(range(rows)),
        ticktext=[palette.label(name) for name in palette.short_names(result.space.units, width)],
        range=[rows - 0.5, -0.5],
        showgrid=False,
        fixedrange=True,
    )
    layout["yaxis"]["tickfont"] = {"size": font, "color": palette.MUTED}
    layout["dragmode"] = False
    # What `report.js` changes on a narrow screen.
    narrow = [palette.label(name) for name in palette.short_names(result.space.units, NARROW)]
    layout["meta"] = {"narrow": {"yaxis": {"ticktext": narrow, "tickfont": {"size": min(font, 10)}}}}
    return layout


def _row_height(rows: int) -> tuple[int, int]:
    """Return pixels of a row and of its label: 130 units still fit a few screens."""
    if rows <= 40:
        return 21, 12
    return (16, 11) if rows <= 80 else (13, 10)


def _describe(result: TuneResult, unit: int, k: int) -> str:
    profile = result.profile
    lines = [f"<b>{palette.label(result.space.units[unit])}</b>", FORMAT_NAMES[k]]
    kernels = ", ".join(dict.fromkeys(profile.implementations[unit][k]))
    if kernels:
        lines[-1] += f" by {palette.label(kernels)}"
    lines.append(f"local output error {error_words(float(profile.error[unit, k]))}")
    lines.append(f"{share(float(profile.time[unit, k]))} of the baseline's run")
    lines.append(f"{size(float(profile.bytes[unit, k])) if profile.bytes[unit, k] else UNKNOWN} held")
    if reason := profile.reasons[unit][k]:
        lines.append(palette.label(reason))
    return "<br>".join(lines)


def error_words(error: float) -> str:
    """Return a local error in words: `same numbers` up to where fp32 summation order shows."""
    if not math.isfinite(error):
        return UNKNOWN
    return "same numbers" if error <= LOSSLESS_ERROR else f"{number(100 * error, 2)}%"


def _decades(errors: NDArray[np.float64]) -> list[int]:
    """Return the powers of ten that span errors; the lowest, one below them, stands for the same numbers."""
    lossy = errors[np.isfinite(errors) & (errors > LOSSLESS_ERROR)]
    if not lossy.size:
        return [-4, -3, -2, -1, 0]
    low, high = math.floor(math.log10(lossy.min())), math.ceil(math.log10(lossy.max()))
    return list(range(low - 1, max(high, low + 1) + 1))


def _none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
