"""Which plans are worth a measured run: expected improvement over posterior draws.

For every limit on the drop that the goal asks about, and every draw, a plan improves by how much cheaper
it is than the best plan known to keep that limit, times the probability that it keeps it when measured.
Averaged over draws this is expected improvement under constraints (Gardner et al., ICML 2014); over a grid
of limits, each weighed by the stretch of drops that it stands for, it approximates the expected gain in
hypervolume. A batch is chosen one by one, each as if the ones before it had been measured in every draw.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from autoprec.envs.additive import Floats, Ints
from autoprec.envs.space import Goal, SearchSpace, Trial
from autoprec.envs.surrogate import Surrogate, SurrogateDraws

JUDGES = 128
"""Posterior draws that decide which plans are measured."""
FRONT_LIMITS = (0.1, 0.3, 0.6, 1.0, 1.5, 2.2, 3.2, 4.7, 6.8, 10.0)
"""Limits asked about for a whole front, in units of the goal's own."""


def goal_limits(goal: Goal) -> Floats:
    """Return the limits on the drop that a goal asks about."""
    factors = FRONT_LIMITS if goal.whole_front else (1.0,)
    return np.array(factors) * goal.max_quality_drop


def limit_weights(limits: Floats) -> Floats:
    """Return the stretch of drops that each limit of a rising grid `[L]` stands for, relative to the mean.

    Stretches begin at 0, meet at the geometric means of neighbours and end at the last limit.
    """
    widths = np.diff([0.0, *np.sqrt(limits[1:] * limits[:-1]), limits[-1]])
    mean = widths.mean()
    return np.asarray(widths / mean if mean > 0 else np.ones(len(limits)))


class Acquisition:
    """Scores plans under a fitted surrogate.

    Args:
        surrogate: Fitted to `trials`.
        trials: Every trial so far.
        rng: Draws the worlds.
        worlds: How many posterior draws stand for the posterior where plans are improved.
    """

    def __init__(
        self, surrogate: Surrogate, trials: Sequence[Trial], rng: np.random.Generator, worlds: int = 48
    ) -> None:
        self._surrogate = surrogate
        self._goal = surrogate.goal
        self._limits = goal_limits(self._goal)
        self._weights = limit_weights(self._limits)
        self._draws = surrogate.draw(rng, worlds)
        # The best of many plans under some draws owes part of that to those draws: others are the judges.
        self._judges = surrogate.draw(rng, JUDGES)
        start = surrogate.profile.baseline_bytes if self._goal.objective == "memory" else 1.0
        self._unit = float(max(start, 1e-12))
        usable = [
            t
            for t in trials
            if t.ok and t.share == 1 and (self._goal.max_bytes is None or t.bytes <= self._goal.max_bytes)
        ]
        costs = np.array([trial.cost(self._goal) for trial in usable]) / self._unit
        drops = np.array([trial.drop for trial in usable])
        worst = max(1.0, float(costs.max(initial=1.0)))
        best = [costs[drops <= limit].min(initial=worst) for limit in self._limits]
        self._best = np.array(best)[:, None]

    def score(self, plans: Ints) -> Floats:
        """Return the expected improvement `[N]` of plans `[N, U]`, in shares of the baseline's cost."""
        cost, chance = self._judge(plans, self._draws)
        return self._expected(_improvement(cost, self._best) * chance)

    def score_changes(self, plan: Ints, units: Ints, formats: Ints) -> Floats:
        """Return the expected improvement `[N]` of plans that differ from one plan `[U]` in one unit each."""
        changes = plan, units, formats
        found = self._surrogate
        cost, chance = self._outlook(
            *self._draws.evaluate_changes(*changes),
            found.bytes_of_changes(*changes),
            found.ok_probability_of_changes(*changes),
        )
        return self._expected(_improvement(cost, self._best) * chance)

    def choose(self, plans: Ints, count: int) -> list[int]:
        """Return the rows of up to `count` plans to measure together, the most promising first."""
        best = self._best
        cost, chance = self._judge(plans, self._judges)
        gain = _improvement(cost, best) * chance
        # The bare utility settles ties where nothing is expected to improve any more.
        fallback = 1e-6 * (chance.mean(axis=(0, 1)) - 0.1 * cost.mean(axis=0))
        chosen: list[int] = []
        for _ in range(min(count, len(plans))):
            score = self._expected(gain) + fallback
            score[chosen] = -np.inf
            pick = int(np.argmax(score))
            chosen.append(pick)
            best = best - gain[:, :, pick]
            gain = _improvement(cost, best) * chance
        return chosen

    def climb(self, space: SearchSpace, starts: Ints, rounds: int) -> Ints:
        """Return plans seen while climbing from `starts` `[N, U]`, one unit at a time, best last.

        Every round moves each start to the neighbour of highest expected improvement, if one is higher.
        """
        seen = [starts]
        current = starts
        for _ in range(rounds):
            moved = []
            for plan, score in zip(current, self.score(current), strict=True):
                units, formats = changes_of(space, plan)
                if not len(units):
                    continue
                scores = self.score_changes(plan, units, formats)
                order = np.argsort(-scores)[:4]
                around = np.repeat(plan[None], len(order), axis=0)
                around[np.arange(len(order)), units[order]] = formats[order]
                seen.append(around)
                if scores[order[0]] > score:
                    moved.append(around[0])
            if not moved:
                break
            current = np.unique(np.array(moved), axis=0)
        return np.unique(np.concatenate(seen), axis=0)

    def _expected(self, gain: Floats) -> Floats:
        """Return the mean `[N]` of gains `[L, S, N]` over draws and, weighed, over limits."""
        return np.asarray((gain.mean(axis=1) * self._weights[:, None]).mean(axis=0))

    def _judge(self, plans: Ints, draws: SurrogateDraws) -> tuple[Floats, Floats]:
        found = self._surrogate
        return self._outlook(*draws.evaluate(plans), found.bytes(plans), found.ok_probability(plans))

    def _outlook(self, time: Floats, drop: Floats, held: Floats, ok: Floats) -> tuple[Floats, Floats]:
        """Return costs `[S, N]`, and the chances `[L, S, N]` that each limit is kept when measured."""
        noise = self._surrogate.drop_error(drop)
        allowed = ok if self._goal.max_bytes is None else ok * (held <= self._goal.max_bytes)
        chance = np.stack([ndtr((limit - drop) / noise) for limit in self._limits]) * allowed
        memory = self._goal.objective == "memory"
        cost = np.repeat((held / self._unit)[None], len(time), axis=0) if memory else time
        return cost, chance


def _improvement(cost: Floats, best: Floats) -> Floats:
    """Return by how much costs `[S, N]` are below the best of each limit `[L, 1]`, or draw `[L, S]`."""
    return np.maximum(best[:, :, None] - cost[None], 0.0)


def changes_of(space: SearchSpace, plan: NDArray[np.intp]) -> tuple[Ints, Ints]:
    """Return every change of a plan `[U]` in one unit: which unit `[N]`, and its other format `[N]`."""
    units, formats = np.nonzero(space.mask)
    other = formats != plan[units]
    return units[other], formats[other]


def neighbours(space: SearchSpace, plan: NDArray[np.intp]) -> Ints:
    """Return every plan `[N, U]` that differs from `plan` in one unit."""
    units, formats = changes_of(space, plan)
    around = np.repeat(plan[None], len(units), axis=0)
    around[np.arange(len(units)), units] = formats
    return around
