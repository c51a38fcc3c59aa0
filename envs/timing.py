"""Paired timing: speed as a ratio of interleaved runs, because absolute times on a shared machine lie."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from autoprec.envs.accelerator import Clock


@dataclass(frozen=True)
class TimingSettings:
    """How long to repeat.

    Attributes:
        target: Half-width of the 95% interval, relative to the ratio, at which repeating stops.
        max_seconds: Cap on the time spent, warm-up aside; a quarter of it is the cap on the warm-up, after
            one call of each side.
        fewest_pairs: Paired ratios that are taken even where they take longer than `max_seconds`.
        min_pairs: Paired ratios before stopping for a narrow interval is considered.
        max_pairs: Cap on paired ratios.
        min_sample_seconds: A sample repeats calls until it takes this long, so that the clock and the
            scheduler do not dominate short runs.
        warmup: Untimed calls of each side; at least one is made, to see how long they take.
    """

    target: float = 0.01
    max_seconds: float = 1.0
    fewest_pairs: int = 3
    min_pairs: int = 8
    max_pairs: int = 400
    min_sample_seconds: float = 0.004
    warmup: int = 3


@dataclass(frozen=True)
class PairedTiming:
    """The outcome of `time_pairs`.

    Attributes:
        ratio: Median of the paired ratios a ÷ b: above 1, b is faster.
        low: Lower end of its bootstrap 95% interval.
        high: Upper end.
        a_seconds: Median seconds of one call of a.
        b_seconds: Median seconds of one call of b.
        pairs: Number of paired ratios.
    """

    ratio: float
    low: float
    high: float
    a_seconds: float
    b_seconds: float
    pairs: int


def time_pairs(
    a: Callable[[], object],
    b: Callable[[], object],
    settings: TimingSettings,
    clock: Clock | None = None,
) -> PairedTiming:
    """Time two callables interleaved as A B B A and return the ratio of their times.

    One pair is one A B B A block: (A + A) ÷ (B + B). Slow drift of the machine cancels within a block. The
    order of the sides alternates between blocks, so that neither always follows the other.

    Args:
        a: One side.
        b: The other.
        settings: How long to repeat.
        clock: That of the device that they run on, see `clock_of`; the CPU's by default.
    """
    clock = clock or time.perf_counter
    started = clock()
    for _ in range(max(1, settings.warmup)):
        slowest = max(_sample(a, 1, clock), _sample(b, 1, clock))
        if clock() - started > settings.max_seconds / 4:
            break
    if slowest < 4 * settings.min_sample_seconds:  # the first calls may have been cold
        slowest = max(_sample(a, 1, clock), _sample(b, 1, clock))
    calls = max(1, int(np.ceil(settings.min_sample_seconds / max(slowest, 1e-7))))
    blocks: list[tuple[float, float]] = []
    started = clock()
    next_look = settings.min_pairs
    collecting = gc.isenabled()
    gc.disable()
    try:
        while True:
            first, second = (a, b) if len(blocks) % 2 == 0 else (b, a)
            outer = _sample(first, calls, clock)
            inner = _sample(second, calls, clock) + _sample(second, calls, clock)
            outer += _sample(first, calls, clock)
            blocks.append((outer, inner) if first is a else (inner, outer))
            spent = clock() - started
            late = spent > settings.max_seconds and len(blocks) >= settings.fewest_pairs
            if late or len(blocks) >= settings.max_pairs:
                break
            if len(blocks) >= next_look:
                ratio, low, high = median_interval(_ratios(blocks))
                if (high - low) / 2 <= settings.target * ratio:
                    break
                next_look = int(np.ceil(len(blocks) * 1.4))
    finally:
        if collecting:
            gc.enable()
    ratio, low, high = median_interval(_ratios(blocks))
    times = np.asarray(blocks) / (2 * calls)
    return PairedTiming(
        ratio, low, high, float(np.median(times[:, 0])), float(np.median(times[:, 1])), len(blocks)
    )


def median_interval(values: NDArray[np.float64] | Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its bootstrap 95% interval (percentile method, fixed seed).

    Up to 6 values give their extremes, which cover the median with probability 1 - 2 ÷ 2ⁿ: 75% for 3, 97%
    for 6.
    """
    array = np.asarray(values, dtype=np.float64)
    median = float(np.median(array))
    if len(array) <= 6 or np.ptp(array) == 0.0:
        return median, float(array.min()), float(array.max())
    found = stats.bootstrap(
        (array,), np.median, n_resamples=1000, method="percentile", rng=np.random.default_rng(0)
    )
    low, high = found.confidence_interval
    return median, min(float(low), median), max(float(high), median)


def _ratios(blocks: Sequence[tuple[float, float]]) -> NDArray[np.float64]:
    array = np.asarray(blocks)
    ratios: NDArray[np.float64] = array[:, 0] / array[:, 1]
    return ratios


def _sample(call: Callable[[], object], calls: int, clock: Clock) -> float:
    started = clock()
    for _ in range(calls):
        call()
    return clock() - started
