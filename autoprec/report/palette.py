"""Colours, symbols and labels that are the same in every figure of the report.

Colours that must follow the reader's light or dark scheme are written `var(--name)`; `report.js` puts the
style sheet's value in before it draws.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

INK = "var(--ink)"
MUTED = "var(--muted)"
LINE = "var(--line)"
PAPER = "var(--paper)"
LIMIT = "var(--limit)"

# Families: grey fp32, blue 16-bit floats, yellow to red int8 arithmetic, green and plum weight-only,
# purple fp8. Picked by simulated annealing for the largest smallest distance (CIELAB) of any two under
# normal sight and full protanopia, deuteranopia and tritanopia (Machado et al. 2009,
# doi:10.1109/TVCG.2009.113), with a contrast of at least 1.9 on white and on near-black.
_FORMATS = {
    "fp32": "#aab3b9",
    "bf16": "#195391",
    "fp16": "#2b76fe",
    "fp16_weight": "#4dc5fd",
    "int8_dynamic": "#e4b319",
    "int8_dynamic_row": "#b86811",
    "int8_static": "#9a0e07",
    "int8_weight_only": "#16a061",
    "int4_weight_only": "#81325a",
    "fp8_e4m3": "#743dbd",
    "fp8_e5m2": "#a06fcd",
    "fp8_block": "#4f39f4",
    "int8_dynamic_7bit": "#c4b859",
    "int8_static_7bit": "#912a33",
    # Added later, by eye: tints of the formats that they derive from.
    "int8_dynamic_smooth": "#ffd97a",
    "int8_static_smooth": "#d9564f",
    "int4_dynamic": "#c77fa6",
}
_OTHER_FORMAT = "#7d8590"

# Okabe and Ito's colours; the symbols tell searchers apart without them.
_SEARCHERS = {
    "rl": ("#d55e00", "star-diamond"),
    "ilp": ("#0072b2", "diamond"),
    "greedy": ("#009e73", "triangle-up"),
    "hillclimb": ("#e69f00", "square"),
    "tpe": ("#cc79a7", "pentagon"),
    "nsga2": ("#56b4e9", "hexagon"),
    "portfolio": ("#b8860b", "cross"),
    "random": ("#8a8f98", "circle"),
    "initial": ("#6b7280", "x"),
}
_MORE_SEARCHERS = (("#7a5195", "triangle-down"), ("#a05d56", "bowtie"), ("#4e79a7", "hourglass"))


def format_colour(name: str) -> str:
    """Return the colour of a format."""
    return _FORMATS.get(name, _OTHER_FORMAT)


def searcher_styles(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return (colour, symbol) of each searcher, in the order given."""
    styles: dict[str, tuple[str, str]] = {}
    unknown = 0
    for name in dict.fromkeys(names):
        if name in _SEARCHERS:
            styles[name] = _SEARCHERS[name]
        else:
            styles[name] = _MORE_SEARCHERS[unknown % len(_MORE_SEARCHERS)]
            unknown += 1
    return styles


def label(text: str) -> str:
    """Return text for a figure: Plotly reads tags and entities in labels, and names may hold anything."""
    return html.escape(" ".join(text.split()), quote=False)


def short_names(names: Sequence[str], width: int) -> list[str]:
    """Return names for axis labels: without what they all begin with, and shortened where they are longer.

    `layer.0.attention.output.dense` becomes `l.0.a.output.dense`: the number of a layer tells most.
    """
    skipped = _common_prefix(names)
    return [_cut(_abbreviated(name[skipped:], width), width) for name in names]


def _common_prefix(names: Sequence[str]) -> int:
    if len(names) < 2:
        return 0
    parts = [name.split(".") for name in names]
    skipped = 0
    for pieces in zip(*(part[:-1] for part in parts), strict=False):
        if len(set(pieces)) > 1:
            break
        skipped += len(pieces[0]) + 1
    return skipped


def _abbreviated(name: str, width: int) -> str:
    parent, brace, siblings = name.partition("{")
    parts = parent.split(".")
    for index, part in enumerate(parts[:-1]):
        if len(".".join(parts)) + len(brace + siblings) <= width:
            break
        if not part.isdigit():
            parts[index] = part[:1]
    return ".".join(parts) + brace + siblings


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 5
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def base_layout(height: int) -> dict[str, Any]:
    """Return what every figure's layout has: no background, no template, the page's ink."""
    return {
        "template": {},
        "height": height,
        "autosize": True,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": INK, "size": 13, "family": "system-ui, -apple-system, 'Segoe UI', sans-serif"},
        "hoverlabel": {
            "bgcolor": PAPER,
            "bordercolor": MUTED,
            "font": {"color": INK, "size": 13},
            "align": "left",
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": MUTED, "activecolor": INK},
        "margin": {"l": 64, "r": 16, "t": 16, "b": 52},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 12}},
    }


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis in the page's muted colours."""
    return {
        "title": {"text": title, "font": {"size": 13, "color": MUTED}},
        "gridcolor": LINE,
        "linecolor": LINE,
        "zeroline": False,
        "tickfont": {"color": MUTED, "size": 12},
        "automargin": True,
        **more,
    }
