"""Times two functions on a GPU in turns, with cold caches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from benchmarks.kernels.cases import Call

PAIR_SECONDS = 0.12
"""GPU time that a pair of functions is given, beyond the fewest turns."""
FEWEST, MOST = 6, 25
"""Turns: of fewer than six, no two order statistics enclose the median with 95%."""
_FLUSHED = 256 * 2**20
"""Bytes written between two runs; the largest L2 cache described in the families' files is far smaller."""


@dataclass(frozen=True)
class Ratio:
    """A median with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Pair:
    """What two functions took, in turns.

    Attributes:
        ours: Median seconds of a run.
        rival: The other's.
        ratio: Median of `rival ÷ ours` of each turn; above 1 where ours is faster.
        turns: Number of turns, of two runs each.
        graphs: Whether both ran as CUDA graphs, so that no time of the CPU is in it.
    """

    ours: float
    rival: float
    ratio: Ratio
    turns: int
    graphs: bool


def interval(ratios: Sequence[float]) -> Ratio:
    """Return the median and the order statistics that enclose the true one with at least 95%.

    Distribution-free: the number of draws below the true median is binomial (David and Nagaraja, Order
    Statistics, section 7.1). Of fewer than six draws, the extremes.
    """
    draws = sorted(ratios)
    count = len(draws)
    outside, below = 0, 0.0
    while outside < count // 2:
        below += math.comb(count, outside) / 2**count
        if below > 0.025:
            break
        outside += 1
    cut = max(outside - 1, 0)
    return Ratio(median(draws), draws[cut], draws[count - 1 - cut])


class Stopwatch:
    """Times functions on one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._flush = torch.empty(_FLUSHED, dtype=torch.int8, device=device)

    def pair(self, ours: Call, rival: Call, seconds: float = PAIR_SECONDS) -> Pair:
        """Time two functions A B B A, in as many turns as the time allows.

        Raises:
            Exception: Whatever a function raises.
        """
        (first, first_recorded), (second, second_recorded) = _recorded(ours), _recorded(rival)
        trial = sum(self._run([first, second, second, first]))
        # Flushing takes about as long again as a short function.
        turns = max(FEWEST, min(MOST, int(seconds / max(trial, 1e-6))))
        times = self._run([first, second, second, first] * turns)
        fours = [times[start : start + 4] for start in range(0, len(times), 4)]
        return Pair(
            median(time for four in fours for time in (four[0], four[3])),
            median(time for four in fours for time in four[1:3]),
            interval([(four[1] + four[2]) / (four[0] + four[3]) for four in fours]),
            turns,
            first_recorded and second_recorded,
        )

    def alone(self, call: Call, seconds: float = 0.3) -> float:
        """Return median seconds of a function."""
        recorded, _ = _recorded(call)
        trial = max(self._run([recorded])[0], 1e-6)
        return median(self._run([recorded] * max(FEWEST, min(MOST, int(seconds / trial)))))

    def _run(self, calls: Sequence[Call]) -> list[float]:
        """Return the seconds of each, one after the other, the caches flushed before each."""
        marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in calls]
        for call, (start, end) in zip(calls, marks, strict=True):
            self._flush.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in marks]


def _recorded(call: Call) -> tuple[Call, bool]:
    """Return a function as a CUDA graph, warmed up, and whether it became one; else the function itself.

    Tiles are chosen and kernels compiled by the first runs, outside of what is timed.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
        torch.cuda.synchronize()
    except Exception:  # it asks the GPU for something that a recording cannot give
        torch.cuda.synchronize()
        return call, False
    return graph.replay, True
