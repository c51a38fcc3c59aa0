"""What searchers share: the trials so far, which plans are still worth proposing, and a base class."""

from __future__ import annotations

import itertools
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from autoprec.agents.searcher import Problem, Searcher
from autoprec.envs.space import Assignment, SearchSpace, Trial, best_trial, pareto_front
from autoprec.envs.surrogate import BLAMED, failure_blame

ENUMERATED = 5_000
"""Spaces up to this many plans are walked through plan by plan when random tries find nothing new."""


class History:
    """The trials of a search, and the plans that were not tried yet.

    Attributes:
        problem: The problem.
        trials: Every trial, in order.
        seen: Their plans.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.trials: list[Trial] = []
        self.seen: set[Assignment] = set()
        self._suspects = np.zeros(problem.space.mask.shape, np.bool_)

    def add(self, trials: Sequence[Trial]) -> None:
        """Take in trials."""
        self.trials.extend(trials)
        self.seen.update(trial.assignment for trial in trials)
        if not all(trial.ok for trial in self.trials):
            self._suspects = failure_blame(self.problem.space, self.trials) >= BLAMED

    def best(self) -> Trial | None:
        """Return the cheapest trial that meets the goal."""
        return best_trial(self.trials, self.problem.goal)

    def front(self) -> list[Trial]:
        """Return the Pareto front of cost and drop."""
        return pareto_front(self.trials, self.problem.goal)

    def fits(self, plan: Assignment) -> bool:
        """Say whether a plan keeps the limit on bytes, which needs no run to know."""
        limit = self.problem.goal.max_bytes
        return limit is None or self.problem.profile.plan_bytes(self.problem.space, plan) <= limit

    def suspected(self, plan: Assignment) -> bool:
        """Say whether a plan makes a choice that probably caused earlier failures."""
        return bool(self._suspects[np.arange(len(plan)), list(plan)].any())

    def fresh(self, plans: Iterable[Sequence[int]]) -> list[Assignment]:
        """Return the plans that are distinct, allowed, within the limit on bytes, untried and unsuspected."""
        kept: dict[Assignment, None] = {}
        for raw in plans:
            plan = tuple(int(index) for index in raw)
            if (
                plan not in self.seen
                and plan not in kept
                and self.problem.space.feasible(plan)
                and not self.suspected(plan)
                and self.fits(plan)
            ):
                kept[plan] = None
        return list(kept)

    def fill(self, plans: list[Assignment], count: int, rng: np.random.Generator) -> list[Assignment]:
        """Return `plans` cut or filled up to `count` with random ones; fewer only where none are left."""
        chosen = dict.fromkeys(plans[:count])
        space = self.problem.space
        for _ in range(20 * count):
            if len(chosen) >= count:
                return list(chosen)
            for plan in self.fresh([self._shrink(random_plan(space, rng), rng)]):
                chosen.setdefault(plan)
        if space.size <= ENUMERATED:
            rest = [
                plan
                for plan in itertools.product(*(space.choices(unit) for unit in range(len(space.units))))
                if plan not in self.seen and plan not in chosen and self.fits(plan)
            ]
            rng.shuffle(rest)
            rest.sort(key=self.suspected)
            chosen.update(dict.fromkeys(tuple(plan) for plan in rest[: count - len(chosen)]))
        return list(chosen)

    def _shrink(self, plan: Assignment, rng: np.random.Generator) -> Assignment:
        """Move units, in random order, to their smallest format until the plan keeps the limit on bytes."""
        space, profile = self.problem.space, self.problem.profile
        for unit in rng.permutation(len(plan)):
            if self.fits(plan):
                break
            smallest = min(space.choices(unit), key=lambda index: int(profile.bytes[unit, index]))
            plan = (*plan[:unit], smallest, *plan[unit + 1 :])
        return plan


class HistorySearcher(Searcher):
    """A searcher whose proposals depend on nothing but its seed and the trials observed.

    So a search that is resumed goes on exactly as if it had never stopped. Subclasses give `_candidates`,
    best first; what was tried is dropped, and random plans fill the rest.
    """

    def __init__(self, problem: Problem, seed: int) -> None:
        super().__init__(problem, seed)
        self.history = History(problem)

    def observe(self, trials: Sequence[Trial]) -> None:
        """Take in trials that have finished since the last call."""
        self.history.add(trials)

    def propose(self, count: int) -> list[Assignment]:
        """Return up to `count` distinct plans that were not yet observed."""
        rng = np.random.default_rng([self.seed, len(self.history.trials), zlib.crc32(self.name.encode())])
        # Small matrices: on a busy machine, BLAS threads that wait for each other cost 6 times the work.
        with ThreadpoolController().limit(limits=1, user_api="blas"):
            plans = self.history.fresh(self._candidates(count, rng))
            return self.history.fill(plans, count, rng)

    @abstractmethod
    def _candidates(self, count: int, rng: np.random.Generator) -> Iterable[Sequence[int]]:
        """Return plans worth measuring, best first; tried and repeated ones are dropped by the caller."""


def random_plan(space: SearchSpace, rng: np.random.Generator) -> Assignment:
    """Return a plan drawn uniformly from the space."""
    return tuple(int(rng.choice(space.choices(unit))) for unit in range(len(space.units)))
