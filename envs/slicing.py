"""Quality on a slice of the evaluation data first, and on all of it only where that matters.

A plan whose drop on the slice is clearly far beyond the limit is not judged further: it cannot be the answer,
and a search learns nearly as much from the slice. How far the slice can be trusted is learned from the plans
that were judged on both. Only drops on all of the data reach a plan.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from autoprec.envs.space import Goal
from autoprec.errors import WorkloadError, one_line

if TYPE_CHECKING:
    from autoprec.envs.measure import Measurer

SHARE = 0.25
"""Share of the data that is a slice."""
WORTHWHILE = 0.2
"""Seconds that all of the data must take: less is a small part of a run, whose timing takes a second."""
FAR = 3.0
"""A plan is judged further where it may lose less than this many limits."""
FAR_FRONT = 10.0
"""The same, where the plans for every limit are wanted."""
SPREADS = 2.0
"""Standard deviations that a drop on the slice is allowed to be off."""
FIRST_ERROR = 0.5
"""Relative error of a drop on the slice before any pair was seen; it weighs as much as one pair."""
RECENT = 8
"""A searcher's last plans, which say whether slices of the next will save more than they cost."""
PAIRS = 3
"""Plans that every search begins with and that are judged on both, so that the slice's error is known."""
SAME = 3
"""Plans that lose exactly the same on the slice and on all of the data: then the slice is all of it."""


@dataclass(frozen=True)
class Judged:
    """How a plan was judged.

    Attributes:
        quality: On `share` of the data.
        drop: The baseline's quality on the same data minus `quality`.
        share: The fidelity: 1 is all of the data.
        slice_drop: The drop on the slice, where one was judged before all of the data.
    """

    quality: float
    drop: float
    share: float = 1.0
    slice_drop: float | None = None


class SliceFirst:
    """Judges the plans of one search, and learns what its slice is worth.

    A copy of it may judge in another process. What the copy learns there of the cost of slices stays there:
    they are then taken to cost what their share says.

    Args:
        goal: Says which drops matter.
        note: Hears why slices are not used, where the workload offers them and they fail; once.
        used: False judges everything on all of the data.
    """

    def __init__(self, goal: Goal, note: Callable[[str], None], *, used: bool = True) -> None:
        self._whole_front = goal.whole_front
        self._limit = max(goal.max_quality_drop, 1e-9)
        self._note = note
        self._used = used
        self._begun = False
        self._squared_errors: list[float] = []
        self._equal, self._differs = 0, False
        self._far: defaultdict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._slice_seconds = 0.0
        self._costs: list[float] = []  # what a slice took, as a share of what all of the data took

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy in another process needs; nobody is told anything there."""
        return self.__dict__ | {"_note": _say_nothing}

    @property
    def relative_error(self) -> float:
        """Standard deviation of a large drop on the slice around that on all of the data, relative to it."""
        total = FIRST_ERROR**2 + sum(self._squared_errors)
        return math.sqrt(total / (1 + len(self._squared_errors)))

    @property
    def far(self) -> float:
        """The drop on the slice above which a plan is judged no further; infinite where none is."""
        trusted = 1 - SPREADS * self.relative_error
        if not self._used or trusted <= 0:
            return math.inf
        return (FAR_FRONT if self._whole_front else FAR) * self._limit / trusted

    def judge(self, measurer: Measurer, quality: Callable[[float], float], *, proposer: str | None) -> Judged:
        """Judge a candidate on the slice, where that pays, and on all of the data, where that matters.

        Args:
            measurer: Judges the model as it came.
            quality: The candidate's quality on a share of the search data.
            proposer: Who proposed it. `None` where every search begins with it: all of the data judges that,
                and the slice as well where the two are worth comparing.

        Raises:
            Exception: Whatever `quality` raises on all of the data.
        """
        sliced: Judged | Exception | None = None
        if proposer is not None and self._pays(proposer):
            sliced = self._on_slice(measurer, quality)
            if isinstance(sliced, Judged) and sliced.drop > self.far:
                return sliced
        started = perf_counter()
        value = quality(1.0)
        seconds = perf_counter() - started
        drop = measurer.baseline_quality("search") - value
        if proposer is None and drop >= self._limit and len(self._squared_errors) < PAIRS:
            sliced = self._on_slice(measurer, quality)
        if isinstance(sliced, Exception):  # the slice is to blame: all of the data can judge the candidate
            self._stop(f"failed on a candidate that all of the data can judge: {one_line(sliced)}")
        if not isinstance(sliced, Judged):
            return Judged(value, drop)
        self._costs.append(self._slice_seconds / max(seconds, 1e-9))
        return Judged(value, drop, slice_drop=sliced.drop)

    def learn(
        self, drop: float | None, share: float, slice_drop: float | None, *, proposer: str | None
    ) -> None:
        """Hear of a run of the search, this job's or an earlier one's, in order.

        Args:
            drop: Its drop, or `None` where the plan failed.
            share: Share of the data that the drop is on.
            slice_drop: The drop on the slice, where the run was judged on that as well.
            proposer: As for `judge`.
        """
        if drop is None:
            return
        if proposer is not None:
            self._far[proposer].append(share < 1 or drop > self.far)
        if slice_drop is None:
            return
        # What loses less than the limit says little about what loses far more.
        if max(slice_drop, drop) >= self._limit:
            self._squared_errors.append(((drop - slice_drop) / max(slice_drop, self._limit)) ** 2)
        self._differs |= drop != slice_drop
        self._equal += drop == slice_drop != 0
        if self._equal >= SAME and not self._differs:
            self._stop("is no cheap estimate: the quality of every candidate is the same as without it")

    def error(self, drop: float, share: float) -> float:
        """Return the standard deviation of a drop around that on all of the data."""
        return 0.0 if share == 1 else self.relative_error * abs(drop)

    def _ready(self, measurer: Measurer) -> bool:
        """Judge the model as it came on the slice, the first time, and see what that takes."""
        if self._used and not self._begun:
            self._begun = True
            try:
                seconds = measurer.baseline_seconds("search", SHARE)
            except WorkloadError as error:
                self._stop(f"failed: {error}")
            else:
                self._used = seconds / SHARE >= WORTHWHILE
        return self._used

    def _pays(self, proposer: str) -> bool:
        """Say whether a slice of a searcher's next plan is expected to save more than it takes.

        One stays near the limit, another explores far from it; a new one is taken to be like the others.
        """
        everyone = [far for recent in self._far.values() for far in recent]
        expected = (0.5 + sum(everyone)) / (1 + len(everyone))
        recent = self._far[proposer]
        return (2 * expected + sum(recent)) / (2 + len(recent)) > median(self._costs or [SHARE])

    def _on_slice(self, measurer: Measurer, quality: Callable[[float], float]) -> Judged | Exception | None:
        """Judge a candidate on the slice; `None` where slices are not used."""
        if not self._ready(measurer):
            return None
        started = perf_counter()
        try:
            value = quality(SHARE)
        except Exception as error:
            return error
        self._slice_seconds = perf_counter() - started
        return Judged(value, measurer.baseline_quality("search", SHARE) - value, SHARE)

    def _stop(self, why: str) -> None:
        if self._used:
            self._note(f"quality(model, share={SHARE}) {why}; every plan is judged on all of the data")
        self._used = False


def _say_nothing(text: str) -> None:
    """Hear a note where there is nobody to tell."""
