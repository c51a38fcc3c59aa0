"""Greedy search: lower precision where the profile says that it costs least quality per time saved."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from autoprec.agents.history import HistorySearcher
from autoprec.agents.warm_start import harmless_plan
from autoprec.envs.space import Assignment, Trial
from autoprec.envs.surrogate import BLAMED, failure_blame


class GreedySearcher(HistorySearcher):
    """Walks one path of plans from lossless to cheapest, ordered by damage (squared error) per saving.

    First it bisects the path for the last plan that keeps the limit (or, for a whole front, measures the
    path evenly); then it adds single steps of the path to the best plan, the cheapest in damage first.
    """

    name = "greedy"

    def _candidates(self, count: int, rng: np.random.Generator) -> Iterable[Sequence[int]]:
        # A choice that probably made plans fail is no step: every plan after it on the path would fail too.
        blame = failure_blame(self.problem.space, self.history.trials)
        steps = [(unit, index) for unit, index in self._steps() if blame[unit, index] < BLAMED]
        path = [harmless_plan(self.problem)]
        for unit, index in steps:
            path.append((*path[-1][:unit], index, *path[-1][unit + 1 :]))
        known = {trial.assignment: trial for trial in self.history.trials}
        plans = self._spread(path, known, count) if self.problem.goal.whole_front else []
        return [*plans, *self._bisect(path, known, count), *self._extend(steps)]

    def _steps(self) -> list[tuple[int, int]]:
        """Return the path's steps (unit, format), each unit's along its hull of damage against cost."""
        problem = self.problem
        profile, space = problem.profile, problem.space
        cost = profile.bytes.astype(float) if problem.goal.objective == "memory" else profile.time
        damage = np.square(np.nan_to_num(profile.error, nan=np.inf))
        start = harmless_plan(problem)
        ranked: list[tuple[float, int, int]] = []
        for unit in range(len(space.units)):
            here, slope = start[unit], 0.0
            while True:
                rates = {
                    k: (damage[unit, k] - damage[unit, here]) / (cost[unit, here] - cost[unit, k])
                    for k in space.choices(unit)
                    if cost[unit, k] < cost[unit, here]
                }
                if not rates:
                    break
                here = min(rates, key=lambda k: float(rates[k]))
                slope = max(slope, float(rates[here]))
                ranked.append((slope, unit, here))
        # The sort is stable and slopes rise along a unit's hull, so a unit's steps keep their order.
        return [(unit, index) for _, unit, index in sorted(ranked, key=lambda step: step[0])]

    def _bisect(self, path: list[Assignment], known: dict[Assignment, Trial], count: int) -> list[Assignment]:
        low, high = 0, len(path)
        for position, plan in enumerate(path):
            trial = known.get(plan)
            if trial and trial.meets(self.problem.goal):
                low = max(low, position)
        for position, plan in enumerate(path[low + 1 :], low + 1):
            trial = known.get(plan)
            if trial and not trial.meets(self.problem.goal):
                high = position
                break
        inner = np.unique(np.linspace(low, high, count + 2)[1:-1].round().astype(int))
        return [path[position] for position in inner if low < position < high]

    def _spread(self, path: list[Assignment], known: dict[Assignment, Trial], count: int) -> list[Assignment]:
        """Return the plans in the middle of the widest unmeasured stretches of the path."""
        measured = {position for position, plan in enumerate(path) if plan in known}
        wanted: list[int] = []
        for _ in range(count):
            edges = sorted({-1, len(path), *measured, *wanted})
            widest = max(itertools.pairwise(edges), key=lambda pair: pair[1] - pair[0])
            if widest[1] - widest[0] < 2:
                break
            wanted.append(sum(widest) // 2)
        return [path[position] for position in wanted]

    def _extend(self, steps: list[tuple[int, int]]) -> list[Assignment]:
        best = self.history.best()
        base = best.assignment if best else harmless_plan(self.problem)
        return [(*base[:unit], index, *base[unit + 1 :]) for unit, index in steps if base[unit] != index]
