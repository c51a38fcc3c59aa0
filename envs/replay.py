"""Answering for plans that were not recorded: a law fitted to a landscape's measured runs.

The law is of another family than the searchers' surrogate, so that none of them searches its own model. Time
is a Gaussian process over the plan's one-hot choices with a linear and a smooth part. The drop is a sum of
damages that are 0 or more, fitted by least squares of relative errors, times the exponential of a Gaussian
process that learns what the sum misses: neighbours that amplify or cancel, saturation.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel
from sklearn.model_selection import KFold

from autoprec.envs.landscape import Landscape, LandscapeError
from autoprec.envs.space import Assignment, SearchSpace, Trial
from autoprec.envs.surrogate import BLAMED, failure_blame

Floats = NDArray[np.float64]

TIME_NOISE = 0.0075
"""Relative standard deviation of a measured time: searches time until the 95% interval is 1.5% either way."""
FEWEST_RUNS = 50
FOLDS = 5


@dataclass(frozen=True)
class HeldOut:
    """How far the law is from recorded runs that it was not fitted to (five-fold cross-validation).

    Attributes:
        time: Median of the relative errors of time.
        drop: Median error of the drop, in units of the landscape's limit, over runs below 10 limits; NaN
            where the limit is 0 or there is no such run.
        order: Spearman's rank correlation of predicted and recorded drops.
        runs: Recorded runs.
    """

    time: float
    drop: float
    order: float
    runs: int


class Replay:
    """A landscape that answers for every plan: the recorded run where there is one, the law elsewhere.

    Args:
        landscape: At least `FEWEST_RUNS` recorded runs that did not fail.

    Attributes:
        name: Of the landscape.
        space: The same.
        profile: The same.
        max_quality_drop: The same.

    Raises:
        LandscapeError: It holds too few runs.
    """

    def __init__(self, landscape: Landscape) -> None:
        self.name = landscape.name
        self.space = landscape.space
        self.profile = landscape.profile
        self.max_quality_drop = landscape.max_quality_drop
        self._landscape = landscape
        self._recorded = {trial.assignment: trial for trial in landscape.trials}
        self._good = [trial for trial in landscape.trials if trial.ok]
        if len(self._good) < FEWEST_RUNS:
            raise LandscapeError(
                f"landscape {landscape.name!r} holds {len(self._good)} runs that did not fail; a law needs "
                f"{FEWEST_RUNS}: record more"
            )
        self._failing = failure_blame(self.space, landscape.trials) >= BLAMED
        self._law = _Law(self.space, self.max_quality_drop, self._good)

    def figures(self, assignments: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Return noise-free relative times and drops of plans `[N, U]`; NaN where the plan fails."""
        time, drop = self._law.figures(assignments)
        fails = self._failing[np.arange(len(self.space.units)), assignments].any(axis=1)
        return np.where(fails, np.nan, time), np.where(fails, np.nan, drop)

    def evaluate(self, assignment: Assignment, searcher: str) -> Trial:
        """Return the run of a plan, as if `searcher` had proposed it now; one plan always measures alike.

        Raises:
            LandscapeError: It is no plan of the space.
        """
        plan = tuple(int(index) for index in assignment)
        if not self.space.feasible(plan):
            raise LandscapeError(f"{plan} is no plan of the landscape {self.name!r}: check it by its mask")
        recorded = self._recorded.get(plan)
        if recorded is not None:
            return Trial(plan, recorded.ok, recorded.time, recorded.bytes, recorded.drop, searcher)
        time, drop = (float(values[0]) for values in self.figures(np.array([plan])))
        if np.isnan(time):
            return Trial(plan, False, np.nan, np.nan, np.nan, searcher)
        noise = np.random.default_rng([*plan, 0]).normal()
        held = float(self.profile.plan_bytes(self.space, plan))
        return Trial(plan, True, time * float(np.exp(TIME_NOISE * noise)), held, drop, searcher)

    @property
    def identity(self) -> str:
        """The landscape's."""
        return self._landscape.identity

    def held_out(self) -> HeldOut:
        """Return how far a law fitted to four fifths of the runs is from the others; takes a minute."""
        from scipy.stats import spearmanr

        plans, time, drop = _arrays(self._good)
        expected = np.empty((2, len(plans)))
        for train, test in KFold(FOLDS, shuffle=True, random_state=0).split(plans):
            law = _Law(self.space, self.max_quality_drop, [self._good[i] for i in train])
            expected[:, test] = law.figures(plans[test])
        limit = self.max_quality_drop
        mild = np.abs(expected[1] - drop)[drop < 10 * limit]
        return HeldOut(
            time=float(np.median(np.abs(expected[0] / time - 1))),
            drop=float(np.median(mild) / limit) if limit > 0 and len(mild) else float("nan"),
            order=float(spearmanr(expected[1], drop).statistic),
            runs=len(plans),
        )


class _Law:
    """Time and drop as functions of a plan, fitted to trials."""

    def __init__(self, space: SearchSpace, limit: float, trials: list[Trial]) -> None:
        plans, time, drop = _arrays(trials)
        self._space = space
        units, formats = np.nonzero(space.mask)
        base = np.array(space.baseline)
        self._units, self._formats = units[formats != base[units]], formats[formats != base[units]]
        hot = self._hot(plans)
        scale = max(limit, 1e-9)
        self._floor = 0.05 * scale
        self._time = _process(hot, time)
        # Relative errors count, down to a floor below which drops do not matter.
        weight = 1 / (np.abs(drop) + 4 * self._floor)
        self._damage, _ = nnls(
            hot * weight[:, None], np.maximum(drop, 0.0) * weight, maxiter=50 * hot.shape[1]
        )
        total = hot @ self._damage
        excess = np.log((np.maximum(drop, -0.5 * self._floor) + self._floor) / (total + self._floor))
        self._excess = _process(hot, excess)

    def figures(self, plans: NDArray[np.intp]) -> tuple[Floats, Floats]:
        hot = self._hot(plans)
        factor = np.exp(np.clip(self._excess.predict(hot), -3, 3))
        drop = (hot @ self._damage + self._floor) * factor - self._floor
        return np.maximum(np.asarray(self._time.predict(hot)), 1e-3), np.asarray(drop)

    def _hot(self, plans: NDArray[np.intp]) -> Floats:
        """Return which choices `[N, C]` plans `[N, U]` make, those of the baseline left out."""
        return np.asarray(plans[:, self._units] == self._formats, np.float64)


def _process(inputs: Floats, targets: Floats) -> GaussianProcessRegressor:
    kernel = (
        ConstantKernel(0.1, (1e-4, 1e2)) * DotProduct(0.1, (1e-3, 1e2))
        + ConstantKernel(0.1, (1e-4, 1e2)) * RBF(3.0, (0.5, 100.0))
        + WhiteKernel(0.01, (1e-6, 1.0))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a parameter at its bound is an answer too
        process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
        process.fit(inputs, targets)
    return process


def _arrays(trials: list[Trial]) -> tuple[NDArray[np.intp], Floats, Floats]:
    plans = np.array([trial.assignment for trial in trials], np.intp)
    return plans, np.array([t.time for t in trials]), np.array([t.drop for t in trials])
