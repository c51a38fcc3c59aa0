"""Figures as people read them, and the answer of a job in plain words."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoprec.envs.space import Goal
from autoprec.plan import AS_GIVEN, Evidence, Interval, Plan
from autoprec.result import TuneResult

UNKNOWN = "–"
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
SAME_SIZE = 0.01
"""Sizes that differ by less than this share are called the same."""


@dataclass(frozen=True)
class Tile:
    """One figure of the headline: what it is, the figure, and what belongs beside it."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Answer:
    """What a job found, in words.

    Attributes:
        verdict: The answer in a few words.
        sentence: The answer with its figures.
        context: What else belongs to it: the bound without a quality limit, for one.
        gained: Whether precision gained anything within the limits.
        tiles: The figures of the plan, the first the one that was asked for.
    """

    verdict: str
    sentence: str
    context: str
    gained: bool
    tiles: tuple[Tile, ...]


def answer(result: TuneResult) -> Answer:
    """Return the answer of a job."""
    plan = result.best or result.lossless
    evidence = plan.evidence
    if evidence is None:
        return Answer("Nothing was measured", "The plan carries no evidence.", "", False, ())
    memory = result.goal.objective == "memory"
    tiles = _tiles(evidence, result.goal)
    context = _bound(result)
    if result.best is None:
        sentence = (
            f"{_none_of(result)} keeps {_limits(result.goal)}. "
            f"The plan that is kept is the best lossless one: {_speed_gain(evidence)}, {_drop(evidence)}, "
            f"weights {_weights(evidence)}."
        )
        return Answer("No measured plan keeps the limits", sentence, context, False, tiles)
    if not result.compared:
        sentence = (
            "The budget ended before any plan of lower precision was measured. The plan that is kept is the "
            f"best lossless one: {_speed_gain(evidence)}."
        )
        return Answer("Nothing was compared", sentence, context, False, tiles)
    if result.best.key == result.lossless.key or result.best.formats == result.lossless.formats:
        return Answer("Precision gains nothing here", _nothing(evidence, memory), context, False, tiles)
    over = evidence.speedup_over_lossless
    over_words = f"{interval(over)} over the best lossless plan" if over else ""
    drop = f"{_drop(evidence)} {_of_at_most(result.goal)}"
    if memory:
        verdict = f"Weights {_weights(evidence)}"
        parts = [
            f"{size(evidence.plan_bytes)} instead of {size(evidence.baseline_bytes)} held by the weights "
            f"({_weights(evidence)})",
            drop,
            _speed_gain(evidence),
            over_words,
        ]
    else:
        verdict = (
            f"{_times(evidence.speedup.value)} {'faster' if evidence.speedup.value >= 1 else 'the speed'}"
        )
        parts = [_speed_gain(evidence), over_words, drop, f"weights {_weights(evidence)}"]
    return Answer(verdict, ", ".join(part for part in parts if part) + ".", context, True, tiles)


def _none_of(result: TuneResult) -> str:
    worked = sum(trial.ok for trial in result.trials)
    return f"None of the {count(worked, 'plan')} that ran" if worked else "No plan of the search ran, so none"


def _nothing(evidence: Evidence, memory: bool) -> str:
    if evidence.searcher == AS_GIVEN:
        return (
            f"Nothing measured within the limits is {'smaller' if memory else 'faster'} than the model as it "
            "came, so the plan that is kept changes nothing."
        )
    if memory:
        return (
            f"No plan within the limits holds less than the best lossless one: {size(evidence.plan_bytes)}, "
            f"weights {_weights(evidence)}, at {_speed_gain(evidence)}."
        )
    if evidence.speedup.low <= 1.0:
        return (
            "Nothing within the limits is measurably faster than the model as it came: "
            f"the best lossless plan is at {interval(evidence.speedup)} of its speed."
        )
    return (
        f"The best lossless plan is {_speed_gain(evidence)}, by faster kernels for the same numbers; no "
        "lower precision within the limits is measurably faster than that."
    )


def _tiles(evidence: Evidence, goal: Goal) -> tuple[Tile, ...]:
    speed = Tile(
        "against the model as it came",
        _times(evidence.speedup.value),
        f"{_range(evidence.speedup)}; {evidence.baseline_ms:.4g} ms → {evidence.plan_ms:.4g} ms",
    )
    over = evidence.speedup_over_lossless
    lossless = Tile(
        "over the best lossless plan", _times(over.value) if over else UNKNOWN, _range(over) if over else ""
    )
    drop = Tile("quality drop", number(evidence.quality.drop, 3), _of_at_most(goal))
    weights = Tile(
        "weights",
        _weights(evidence),
        f"{size(evidence.baseline_bytes)} → {size(evidence.plan_bytes)}"
        + (f" of at most {size(goal.max_bytes)}" if goal.max_bytes is not None else ""),
    )
    if goal.objective == "memory":
        return weights, drop, speed, lossless
    return speed, lossless, drop, weights


def _bound(result: TuneResult) -> str:
    if result.bound is None or result.bound.evidence is None:
        return ""
    evidence = result.bound.evidence
    reached = (
        f"holds {size(evidence.plan_bytes)}"
        if result.goal.objective == "memory"
        else f"reaches {interval(evidence.speedup)}"
    )
    kind = "smallest" if result.goal.objective == "memory" else "fastest"
    return (
        f"The bound: the {kind} plan measured, whatever its quality (every unit in its {kind} format was "
        f"among them), {reached} at a drop of {number(evidence.quality.drop, 3)}."
    )


def _speed_gain(evidence: Evidence) -> str:
    speedup = evidence.speedup
    if speedup.low <= 1.0 <= speedup.high:
        return f"{interval(speedup)} the speed of the model as it came (no difference that could be measured)"
    if speedup.value < 1.0:
        return f"{interval(speedup)} the speed of the model as it came, so slower"
    return f"{interval(speedup)} faster than the model as it came"


def _drop(evidence: Evidence) -> str:
    drop = evidence.quality.drop
    return f"quality drop {number(drop, 3)}" + (" (no worse than before)" if drop < 0 else "")


def _of_at_most(goal: Goal) -> str:
    return f"of at most {number(goal.max_quality_drop)}" + (
        " (no limit was given)" if goal.whole_front else ""
    )


def _limits(goal: Goal) -> str:
    limits = [f"the quality drop at or below {number(goal.max_quality_drop)}"]
    if goal.max_bytes is not None:
        limits.append(f"the weights at or below {size(goal.max_bytes)}")
    return " and ".join(limits)


def _weights(evidence: Evidence) -> str:
    return smaller(evidence.baseline_bytes, evidence.plan_bytes)


def smaller(before: int, after: int) -> str:
    """Return how two sizes compare: `2.1× smaller`, `as large as before`, `1.3× larger`."""
    if before <= 0 or after <= 0:
        return f"{size(before)} → {size(after)}"
    if abs(after / before - 1) < SAME_SIZE:
        return "as large as before"
    return f"{_times(before / after, 1)} smaller" if after < before else f"{_times(after / before, 1)} larger"


def number(value: float | None, digits: int = 4) -> str:
    """Return a figure with a few significant digits, a dash where it is not known."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:.{digits}g}".replace("-", "−").replace("e−0", "e−")


def interval(value: Interval | None) -> str:
    """Return `1.62× [1.60, 1.64]`, a dash where it was not measured."""
    return f"{_times(value.value)} {_range(value)}" if value is not None else UNKNOWN


def _range(value: Interval) -> str:
    return f"[{value.low:.2f}, {value.high:.2f}]"


def _times(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}×"


def size(held: float | None) -> str:
    """Return bytes as people say them, in decimal units."""
    if held is None or not math.isfinite(held):
        return UNKNOWN
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(held) >= step:
            return f"{number(held / step, 3)} {unit}"
    return f"{held:.0f} bytes"


def share(value: float) -> str:
    """Return a share as a percentage, a dash where it is not known."""
    if not math.isfinite(value):
        return UNKNOWN
    return f"{number(100 * value, 3)}%"


def seconds(value: float) -> str:
    """Return a duration as people say it."""
    if value < 60:
        return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
    return f"{value // 60:.0f} min {value % 60:02.0f} s"


def count(amount: int, noun: str) -> str:
    """Return `1 unit`, `3 units`."""
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"


def large(amount: float) -> str:
    """Return a count that may be astronomical: `1,200` or `6.1 × 10²¹`."""
    if amount < 1e6:
        return f"{amount:,.0f}"
    if not math.isfinite(amount):
        return "more than 10³⁰⁸"
    mantissa, exponent = f"{amount:.1e}".split("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(_SUPERSCRIPTS)}"


def composition(plan: Plan, order: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return (format, number of units) of a plan's formats, in the vocabulary's order."""
    formats = [unit.format for unit in plan.units]
    return [(name, formats.count(name)) for name in dict.fromkeys((*order, *formats)) if name in formats]
