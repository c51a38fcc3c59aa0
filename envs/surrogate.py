"""The surrogate: the posterior over time and quality drop of unmeasured plans.

Both figures are sums over units (`autoprec.envs.additive`); the prior of each unit's part comes from the
profile, and every measured run sharpens it. Bytes are known exactly. For the drop, a unit's expected damage
is its squared local error times one scale that the runs tell; whether damages add up plainly (a loss or
cosine, quadratic in the errors) or under a square root (a relative error) is decided by evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoprec.envs.additive import AdditiveDraws, AdditivePosterior, AdditivePrior, Floats, Ints
from autoprec.envs.space import Goal, Profile, SearchSpace, Trial

TIME_NOISE = 0.01
"""Expected relative noise of a measured time (a median of paired ratios)."""
DROP_MISFIT = 0.1
"""Relative error of the additive law of damage: neighbours amplify or cancel each other."""
BLAMED = 0.5
"""Probability of making every plan fail from which a choice counts as failing."""
SLOW_STD = 0.3
"""Standard deviation of the log of a slow format's time, for each factor of e that it is slower."""
ROOTS = (1.0, 0.5)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the surrogate expects of plans, each `[N]`.

    Attributes:
        time_mean: Relative time.
        time_std: Standard deviation of a measured relative time around it.
        drop_mean: Quality drop.
        drop_std: Standard deviation of a measured drop around it.
        bytes: Bytes held; exact.
        ok_probability: Probability that the plan runs at all.
    """

    time_mean: Floats
    time_std: Floats
    drop_mean: Floats
    drop_std: Floats
    bytes: Floats
    ok_probability: Floats


@dataclass(frozen=True, slots=True)
class SurrogateDraws:
    """`S` equally likely worlds: laws that give time and drop of any plan.

    Attributes:
        time_law: Gives relative times.
        drop_law: Gives drops.
    """

    time_law: AdditiveDraws
    drop_law: AdditiveDraws

    @property
    def time(self) -> Floats:
        """Relative time of each unit in each format, `[S, U, K]`."""
        return self.time_law.table

    @property
    def damage(self) -> Floats:
        """Damage of each unit in each format, `[S, U, K]`."""
        return self.drop_law.table

    def evaluate(self, assignments: Ints) -> tuple[Floats, Floats]:
        """Return times and drops `[S, N]` of plans `[N, U]`."""
        return self.time_law.evaluate(assignments), self.drop_law.evaluate(assignments)

    def evaluate_changes(self, assignment: Ints, units: Ints, formats: Ints) -> tuple[Floats, Floats]:
        """Return times and drops `[S, N]` of plans that differ from one plan `[U]` in one unit each."""
        changes = assignment, units, formats
        return self.time_law.evaluate_changes(*changes), self.drop_law.evaluate_changes(*changes)

    def evaluate_each(self, assignments: Ints) -> tuple[Floats, Floats]:
        """Return times and drops `[S]` of one plan `[S, U]` in each world."""
        return self.time_law.evaluate_each(assignments), self.drop_law.evaluate_each(assignments)

    def budget(self, limit: float) -> Floats:
        """Return the summed damage `[S]` that a drop of `limit` allows."""
        law = self.drop_law
        return np.asarray(np.maximum(limit - law.offset, 0.0) ** (1 / law.root))


class Surrogate:
    """The posterior over a workload's figures; prior until `fit` is called.

    Attributes:
        space: The search space.
        profile: The profile that the prior comes from.
        goal: Sets the scale of drops that matter.
        root: The power that summed damage is raised to, chosen by evidence.
        blame: `[U, K]` probability that a format in a unit makes every plan fail.
    """

    def __init__(self, space: SearchSpace, profile: Profile, goal: Goal) -> None:
        self.space = space
        self.profile = profile
        self.goal = goal
        self._log_time = _log_time_prior(space, profile)
        self._log_damage = _log_damage_prior(space, profile)
        rows = np.arange(len(space.units))
        self._byte_table = profile.bytes - profile.bytes[rows, list(space.baseline)][:, None]
        self.fit(())

    def fit(self, trials: Sequence[Trial]) -> Surrogate:
        """Condition the prior on measured runs (all of them: a later fit starts anew) and return self."""
        good = [t for t in trials if t.ok and np.isfinite(t.time) and np.isfinite(t.drop)]
        plans = np.array([trial.assignment for trial in good], np.intp).reshape(
            len(good), len(self.space.units)
        )
        self.blame = failure_blame(self.space, trials)
        time = np.array([trial.time for trial in good])
        drop = np.array([trial.drop for trial in good])
        self._time = AdditivePosterior(self._time_prior(), plans, time, _time_misfit(time))
        self._drop = self._fit_drop(plans, drop, np.array([trial.drop_error for trial in good]))
        self.root = self._drop.prior.root
        return self

    @property
    def time_table(self) -> Floats:
        """Posterior mode of each unit's relative time, `[U, K]`."""
        return self._time.table

    @property
    def damage_table(self) -> Floats:
        """Posterior mode of each unit's damage, `[U, K]`."""
        return self._drop.table

    @property
    def damage_log_std(self) -> Floats:
        """Posterior standard deviation of the log of each unit's damage, `[U, K]`."""
        return self._drop.log_std()

    @property
    def byte_table(self) -> NDArray[np.int64]:
        """Bytes that each format adds to the baseline's, `[U, K]`; exact."""
        return self._byte_table

    def drop_error(self, drop: Floats) -> Floats:
        """Return the standard deviation of drops measured where a law gives `drop`: noise and misfit."""
        return np.asarray(np.hypot(self._drop.noise, self._drop.misfit_scale * self._misfit(drop)))

    def mode(self) -> SurrogateDraws:
        """Return the most likely world, as one draw."""
        return SurrogateDraws(self._time.mode(), self._drop.mode())

    def draw(self, rng: np.random.Generator, count: int = 1) -> SurrogateDraws:
        """Return `count` posterior draws."""
        return SurrogateDraws(self._time.draw(rng, count), self._drop.draw(rng, count))

    def predict(self, assignments: Ints) -> Prediction:
        """Return what is expected of plans `[N, U]`."""
        time, time_std = self._time.predict(assignments)
        drop, drop_std = self._drop.predict(assignments)
        own_time = np.hypot(self._time.noise, self._time.misfit_scale * _time_misfit(time))
        own_drop = self.drop_error(drop)
        return Prediction(
            time_mean=time,
            time_std=np.hypot(time_std, own_time),
            drop_mean=drop,
            drop_std=np.hypot(drop_std, own_drop),
            bytes=self.bytes(assignments),
            ok_probability=self.ok_probability(assignments),
        )

    def bytes(self, assignments: Ints) -> Floats:
        """Return the bytes `[N]` that plans `[N, U]` hold; exact."""
        rows = np.arange(len(self.space.units))
        held = self.profile.baseline_bytes + self._byte_table[rows, assignments].sum(axis=1)
        return np.asarray(held, np.float64)

    def ok_probability(self, assignments: Ints) -> Floats:
        """Return the probability `[N]` that plans `[N, U]` run at all, judged by those that failed."""
        rows = np.arange(len(self.space.units))
        return np.asarray((1 - self.blame[rows, assignments]).prod(axis=1))

    def bytes_of_changes(self, assignment: Ints, units: Ints, formats: Ints) -> Floats:
        """Return the bytes `[N]` of plans that differ from one plan `[U]` in one unit each; exact."""
        change = self._byte_table[units, formats] - self._byte_table[units, assignment[units]]
        return np.asarray(self.bytes(assignment[None])[0] + change)

    def ok_probability_of_changes(self, assignment: Ints, units: Ints, formats: Ints) -> Floats:
        """Return the probability `[N]` that plans that differ from one plan `[U]` in one unit run at all."""
        fine = 1 - self.blame[np.arange(len(assignment)), assignment]
        before = np.cumprod(np.append(1.0, fine[:-1]))
        after = np.cumprod(np.append(1.0, fine[:0:-1]))[::-1]
        return np.asarray(before[units] * after[units] * (1 - self.blame[units, formats]))

    @property
    def limit_scale(self) -> float:
        """The size of drops that matter: the limit, or a small drop where the limit is 0."""
        return max(self.goal.max_quality_drop, 1e-9)

    def _misfit(self, drop: Floats) -> Floats:
        # Heavy damage saturates and says little about mild plans, so what the law may miss grows
        # faster than the drop once that is far beyond the limit.
        beyond = np.abs(drop) / ((30 if self.goal.whole_front else 10) * self.limit_scale)
        return np.asarray(DROP_MISFIT * np.abs(drop) * np.sqrt(1 + beyond**2))

    def _time_prior(self) -> AdditivePrior:
        rows = np.arange(len(self.space.units))
        own = self._log_time[rows, list(self.space.baseline)]
        units_time = float(np.exp(own).sum())
        return AdditivePrior(
            log_table=self._log_time,
            global_std=0.1,
            format_std=0.15,
            unit_std=0.1,
            # What is much slower than the unit's own format by the profile is so in its own way: layouts,
            # conversions and caches differ with the neighbours.
            cell_std=0.1 + SLOW_STD * np.maximum(self._log_time - own[:, None], 0.0),
            offset=1 - units_time,
            offset_std=0.2,
            root=1.0,
            noise=TIME_NOISE,
            noise_floor=0.2 * TIME_NOISE,
            border_std=0.2,
        )

    def _fit_drop(self, plans: Ints, drop: Floats, error: Floats) -> AdditivePosterior:
        misfit = self._misfit(drop)
        unsure = np.hypot(misfit, error)
        fits = [
            AdditivePosterior(self._drop_prior(plans, drop, unsure, root), plans, drop, misfit, error)
            for root in (ROOTS if len(drop) > 1 else ROOTS[:1])
        ]
        return max(fits, key=lambda fit: fit.log_evidence)

    def _drop_prior(self, plans: Ints, drop: Floats, misfit: Floats, root: float) -> AdditivePrior:
        noise = 0.05 * self.limit_scale
        sums = np.exp(self._log_damage)[np.arange(len(self.space.units)), plans].sum(axis=1)
        # Without runs: the middle one of the uniform plans drops quality by three limits.
        uniform = [
            np.exp(self._log_damage)[np.arange(len(self.space.units)), list(self.space.uniform(k))].sum()
            for k in range(self.space.mask.shape[1])
        ]
        middle = float(np.median([value for value in uniform if value > 0] or [1.0]))
        guess = np.log((3 * self.limit_scale) ** (1 / root) / middle)
        shifts = guess + np.linspace(-25, 25, 201)
        expected = np.exp(root * shifts)[:, None] * sums**root
        residual = (drop - expected) / np.sqrt(noise**2 + misfit**2 + (0.5 * drop) ** 2)
        loss = np.minimum(residual**2, 9).sum(axis=1) + ((shifts - guess) / 5) ** 2
        return AdditivePrior(
            log_table=self._log_damage + shifts[int(np.argmin(loss))],
            global_std=1.0,
            format_std=0.7,
            unit_std=1.5,
            cell_std=np.full(self.space.mask.shape, 0.5),
            offset=0.0,
            offset_std=noise,
            root=root,
            noise=noise,
            noise_floor=0.01 * self.limit_scale,
            coupling=0.1,
            coupling_std=0.2,
        )


def _log_time_prior(space: SearchSpace, profile: Profile) -> Floats:
    rows = np.arange(len(space.units))
    base = profile.time[rows, list(space.baseline)]
    base = np.where(np.isfinite(base) & (base > 0), base, 1e-6)
    # An emulated format has no time of its own: nothing is gained by it.
    time = np.where(np.isfinite(profile.time) & (profile.time > 0), profile.time, base[:, None])
    return np.asarray(np.log(time))


def _time_misfit(time: Floats) -> Floats:
    """Return how far the law of time may be off: more for what is slower than the baseline.

    Slow plans are slow by conversions and caches, which add up badly; they do not matter to a search, but
    must not pull at the law where it does.
    """
    return np.asarray(0.5 * TIME_NOISE * np.abs(time) * np.hypot(1.0, 20 * np.maximum(time - 1, 0.0)))


def _log_damage_prior(space: SearchSpace, profile: Profile) -> Floats:
    rows = np.arange(len(space.units))
    error = np.where(np.isfinite(profile.error), np.abs(profile.error), np.nan)
    known = error[space.mask & (error > 0)]
    middle = float(np.median(known)) if len(known) else 1e-2
    damage = np.square(np.where(np.isnan(error), middle, error))
    damage[rows, list(space.baseline)] = 0.0
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(damage))


def failure_blame(space: SearchSpace, trials: Sequence[Trial]) -> Floats:
    """Return the probability `[U, K]` that a format in a unit makes plans fail.

    Every failed plan shares its blame among those of its choices that never ran well.
    """
    units, formats = space.mask.shape
    rows = np.arange(units)
    cleared = np.zeros((units, formats), np.bool_)
    cleared[rows, list(space.baseline)] = True
    for trial in trials:
        if trial.ok:
            cleared[rows, list(trial.assignment)] = True
    innocent = np.ones((units, formats))
    for trial in trials:
        if trial.ok:
            continue
        plan = np.array(trial.assignment)
        suspects = np.flatnonzero(~cleared[rows, plan])
        if len(suspects):
            innocent[suspects, plan[suspects]] *= 1 - 1 / len(suspects)
    return np.asarray(1 - innocent)
