"""From times to figures: rates, shares of the measured ceilings, goals; and the files that keep them."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kernels.cases import BANDWIDTH, Timing, Work
from benchmarks.kernels.ceilings import COPY, Ceiling
from benchmarks.kernels.checking import Verdict
from benchmarks.kernels.timing import Pair

SCHEMA = "autoprec.kernel-benchmark/1"
PROFILE_SCHEMA = "autoprec.device-profile/1"
BENCHMARK_FILE = "kernel-benchmark.json"
PROFILE_FILE = "device-profile.json"
METHOD = (
    "medians of GPU time between CUDA events, each function a CUDA graph, L2 flushed before each run, in "
    "turns A B B A; intervals are 95%, by order statistics of the ratios of the turns"
)


def attained(
    work: Work, operand: str, seconds: float, ceilings: Mapping[str, Ceiling]
) -> tuple[float, str, float | None]:
    """Return what a time comes to: its rate, the rate's unit, and its share of the ceiling that binds.

    The ceiling that binds is the one that asks for more time: memory or arithmetic (Williams, Waterman,
    Patterson: "Roofline", CACM 52(4), 2009). The share is `None` where it was not measured.
    """
    copy = ceilings[COPY].rate if COPY in ceilings else None
    peak = ceilings[operand].rate if operand in ceilings else None
    memory = work.moved / copy if copy else None
    arithmetic = work.flops / peak if peak else None
    if not work.flops or (memory is not None and arithmetic is not None and memory > arithmetic):
        return work.moved / seconds / 1e9, "GB/s", None if memory is None else memory / seconds
    return work.flops / seconds / 1e12, "TFLOP/s", None if arithmetic is None else arithmetic / seconds


def row(
    operation: str, timing: Timing, work: Work, rival: str, pair: Pair, ceilings: Mapping[str, Ceiling]
) -> dict[str, Any]:
    """Return one line of the results: a shape of a variant against a rival."""
    rate, unit, share = attained(work, timing.operand, pair.ours, ceilings)
    found: dict[str, Any] = head(operation, timing) | {
        "ours_seconds": pair.ours,
        "rival": rival,
        "rival_seconds": pair.rival,
        "ratio": dataclasses.asdict(pair.ratio),
        "turns": pair.turns,
        "graphs": pair.graphs,
        "rate": rate,
        "unit": unit,
        "share": share,
    }
    if timing.goal and timing.goal.of in (rival, BANDWIDTH):
        if timing.goal.of == BANDWIDTH:
            copy = ceilings[COPY].rate if COPY in ceilings else None
            reached = work.moved / pair.ours / copy if copy else None
        else:
            reached = pair.ratio.value
        found["goal"] = dataclasses.asdict(timing.goal) | {
            "found": reached,
            "reached": None if reached is None else reached >= timing.goal.share,
        }
    return found


def head(operation: str, timing: Timing) -> dict[str, Any]:
    """Return what names a timing."""
    return {
        "operation": operation,
        "variant": timing.variant,
        "shape": dict(timing.shape),
        "where": timing.where,
    }


def told(found: Mapping[str, Any]) -> str:
    """Return a line of the results, or why there is none, for people."""
    shape = "x".join(str(size) for size in found["shape"].values())
    name = f"{found['operation']:16} {found['variant']:14} {shape:18}"
    if "reason" in found:
        return f"{name} {found.get('rival', '')} failed: {found['reason']}"
    ratio = found["ratio"]
    share = "" if found["share"] is None else f" = {found['share']:4.0%}"
    line = (
        f"{name} {found['ours_seconds'] * 1e6:9.1f} us {found['rate']:7.0f} {found['unit']:7}{share}  "
        f"{ratio['value']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}] of {found['rival']}"
    )
    goal = found.get("goal")
    if goal is None or goal["found"] is None:
        return line
    reached = "reached" if goal["reached"] else "MISSED"
    return f"{line}; goal {goal['share']:.2f} of {goal['of']} {reached}: {goal['found']:.2f}"


def summary(rows: Sequence[Mapping[str, Any]], left: Sequence[str]) -> list[str]:
    """Return the goals, each with the shapes that reach it and the worst one, and what was left out."""
    goals: dict[tuple[str, str, str, float], list[dict[str, Any]]] = {}
    for found in rows:
        goal = found.get("goal")
        if goal and goal["found"] is not None:
            key = (found["operation"], found["variant"], goal["of"], goal["share"])
            goals.setdefault(key, []).append(goal)
    lines = []
    for (operation, variant, of, share), items in sorted(goals.items()):
        reached = sum(item["reached"] for item in items)
        worst = min(item["found"] for item in items)
        lines.append(
            f"{operation} {variant}: {share:.2f} of {of} in {reached} of {len(items)} measurements, "
            f"the lowest {worst:.2f}"
        )
    if left:
        counts = Counter(item.partition(":")[0] for item in left)
        told_left = ", ".join(f"{count} of {name}" for name, count in counts.items())
        lines.append(f"left out for want of time: {told_left} (named in {BENCHMARK_FILE})")
    return lines


def benchmark(
    device: Mapping[str, Any],
    measured_at: str,
    verdicts: Iterable[Verdict],
    ceilings: Mapping[str, Ceiling],
    rows: Sequence[Mapping[str, Any]],
    left: Sequence[str],
    stopped: str | None,
) -> dict[str, Any]:
    """Return the results as JSON keeps them; `stopped` is the error that ended the run before its time."""
    return {
        "schema": SCHEMA,
        "device": dict(device),
        "measured_at": measured_at,
        "method": METHOD,
        "checks": [dataclasses.asdict(item) for item in verdicts],
        "ceilings": {name: dataclasses.asdict(item) for name, item in ceilings.items()},
        "rows": [dict(item) for item in rows],
        "left_out": list(left),
        "stopped": stopped,
    }


def device_profile(
    device: Mapping[str, Any],
    measured_at: str,
    ceilings: Mapping[str, Ceiling],
    layers: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the device profile as `autoprec profile import` reads it."""
    return {
        "schema": PROFILE_SCHEMA,
        "device": dict(device),
        "measured_at": measured_at,
        "method": METHOD,
        "ceilings": {name: item.rate for name, item in ceilings.items() if item.rate is not None},
        "layers": [dict(item) for item in layers],
    }


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON in one step, so that whoever stops the script keeps the last whole file."""
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    fresh.replace(path)
