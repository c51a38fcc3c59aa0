"""Plans that tell the most about a space as a whole: for recording landscapes, not for winning."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from autoprec.agents.acquisition import FRONT_LIMITS
from autoprec.agents.history import HistorySearcher, random_plan
from autoprec.agents.ilp import solve_knapsack
from autoprec.agents.searcher import Problem
from autoprec.envs.space import Assignment
from autoprec.envs.surrogate import Surrogate


class CoverageSearcher(HistorySearcher):
    """Spreads runs over a space, more of them where plans are worth having.

    Of every batch a half are plans that the knapsack likes under a limit drawn log-uniformly over three
    decades, in worlds drawn from the posterior; a quarter change a random share of the lossless plan; and a
    quarter change one to three units of a plan on the front so far. A replay that is fitted to such runs is
    best where searchers look, and is not blind elsewhere. A space that the runs can record whole is walked
    through plan by plan.

    Args:
        problem: The problem.
        seed: Its seed.
        runs: How many runs there will be in all.
    """

    name = "coverage"

    def __init__(self, problem: Problem, seed: int, runs: int) -> None:
        super().__init__(problem, seed)
        self.runs = runs

    def _candidates(self, count: int, rng: np.random.Generator) -> Iterable[Sequence[int]]:
        space = self.problem.space
        if space.size <= self.runs:
            return itertools.product(*(space.choices(unit) for unit in range(len(space.units))))
        surrogate = Surrogate(space, self.problem.profile, self.problem.goal).fit(self.history.trials)
        plans: list[Assignment] = []
        for kind in rng.permutation(["good", "good", "mixed", "near"] * (1 + count // 4)):
            if kind == "good":
                plans += self._good(surrogate, rng)
            elif kind == "near" and self.history.front():
                front = self.history.front()
                base = front[int(rng.integers(len(front)))].assignment
                plans.append(self._changed(base, int(rng.integers(1, 4)), rng))
            else:
                changed = int(np.ceil(rng.uniform() * len(space.units)))
                plans.append(self._changed(space.baseline, changed, rng))
        return plans

    def _good(self, surrogate: Surrogate, rng: np.random.Generator) -> list[Assignment]:
        low, high = np.log(min(FRONT_LIMITS)), np.log(max(FRONT_LIMITS))
        limit = float(np.exp(rng.uniform(low, high))) * surrogate.limit_scale
        world = surrogate.draw(rng)
        damage, budget = world.damage[0], float(world.budget(limit)[0])
        plan = solve_knapsack(surrogate.space, world.time[0], [(damage, budget)])
        return [] if plan is None else [plan]

    def _changed(self, base: Assignment, units: int, rng: np.random.Generator) -> Assignment:
        """Return a plan with a random format in so many units."""
        other = random_plan(self.problem.space, rng)
        chosen = set(rng.choice(len(base), size=min(units, len(base)), replace=False).tolist())
        return tuple(other[unit] if unit in chosen else index for unit, index in enumerate(base))
