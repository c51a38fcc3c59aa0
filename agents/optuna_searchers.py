"""TPE and NSGA-II, by Optuna."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from autoprec.agents.history import HistorySearcher
from autoprec.envs.space import Assignment, Trial

POPULATION = 20
"""Size of a generation of NSGA-II; Optuna's 50 would be most of a whole budget."""
TRIES = 6
"""How often more plans than wanted are asked for, since both samplers repeat themselves."""


class _OptunaSearcher(HistorySearcher):
    """Builds a study of all trials so far, whoever proposed them, and asks it for the next plans.

    A study is made anew for every proposal, so that nothing but seed and history matters. A plan that
    failed counts as infeasible with a bad cost.
    """

    directions: tuple[str, ...]

    def _candidates(self, count: int, rng: np.random.Generator) -> Iterable[Sequence[int]]:
        space = self.problem.space
        options = {
            f"{unit:04d}": CategoricalDistribution(space.choices(unit))
            for unit in range(len(space.units))
            if len(space.choices(unit)) > 1
        }
        if not options:
            return []
        with warnings.catch_warnings():
            # Optuna 4 needs `constraints_func`, Optuna 5 warns of it at every sampler.
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.logging.disable_default_handler()
            study = optuna.create_study(
                directions=list(self.directions), sampler=self._sampler(int(rng.integers(2**31)))
            )
            study.add_trials([self._frozen(trial, n, options) for n, trial in enumerate(self.history.trials)])
            found: list[Assignment] = []
            for _ in range(TRIES * count):
                if len(self.history.fresh(found)) >= count:
                    break
                asked = study.ask(options)
                plan = list(space.baseline)
                for name, index in asked.params.items():
                    plan[int(name)] = index
                found.append(tuple(plan))
        return found

    def _frozen(self, trial: Trial, number: int, options: dict[str, Any]) -> FrozenTrial:
        goal = self.problem.goal
        start = self.problem.profile.baseline_bytes if goal.objective == "memory" else 1.0
        cost, drop = trial.cost(goal) / max(start, 1e-12), trial.drop
        over = 0.0 if goal.max_bytes is None else trial.bytes / max(goal.max_bytes, 1) - 1
        if not trial.ok:
            cost, drop, over = 10.0, 1e3 * max(goal.max_quality_drop, 1e-9), 1e3
        return create_trial(
            values=self._values(cost, drop),
            params={name: trial.assignment[int(name)] for name in options},
            distributions=options,
            system_attrs={
                "constraints": self._constraints(drop, over),
                NSGAIISampler._get_generation_key(): number // POPULATION,
            },
        )

    def _constraints(self, drop: float, over: float) -> list[float]:
        limits = [over]
        if not self.problem.goal.whole_front:
            limits.append(drop - self.problem.goal.max_quality_drop)
        return limits

    @abstractmethod
    def _values(self, cost: float, drop: float) -> list[float]:
        """Return the objectives of a trial."""

    @abstractmethod
    def _sampler(self, seed: int) -> BaseSampler:
        """Return the sampler of a new study."""


class TPESearcher(_OptunaSearcher):
    """Tree-structured Parzen estimator with the limits as constraints; two objectives for a whole front."""

    name = "tpe"

    @property
    def directions(self) -> tuple[str, ...]:  # type: ignore[override]
        """Cost, and drop where the whole front is asked for; both made small."""
        return ("minimize", "minimize") if self.problem.goal.whole_front else ("minimize",)

    def _values(self, cost: float, drop: float) -> list[float]:
        return [cost, drop] if self.problem.goal.whole_front else [cost]

    def _sampler(self, seed: int) -> BaseSampler:
        return TPESampler(
            seed=seed, n_startup_trials=5, multivariate=True, constant_liar=True, constraints_func=_stored
        )


class NSGA2Searcher(_OptunaSearcher):
    """NSGA-II on cost and drop, with the goal's limits as constraints."""

    name = "nsga2"
    directions = ("minimize", "minimize")

    def _values(self, cost: float, drop: float) -> list[float]:
        return [cost, drop]

    def _sampler(self, seed: int) -> BaseSampler:
        return NSGAIISampler(seed=seed, population_size=POPULATION, constraints_func=_stored)


def _stored(trial: FrozenTrial) -> Sequence[float]:
    return trial.system_attrs["constraints"] if trial.state == TrialState.COMPLETE else (0.0,)
