"""The reinforcement-learning searcher: PPO on the surrogate, refereed by measured runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from autoprec.agents.acquisition import FRONT_LIMITS
from autoprec.agents.history import HistorySearcher
from autoprec.agents.ilp import promising_plans
from autoprec.agents.ppo_settings import PPOSettings
from autoprec.agents.searcher import Problem
from autoprec.envs.additive import Ints
from autoprec.envs.surrogate import Surrogate

if TYPE_CHECKING:
    from autoprec.agents.policy_file import Policy
    from autoprec.agents.rl_trainer import Trainer

DEFAULTS = PPOSettings()
SAMPLES = 8
"""Plans taken from the policy for each limit: its most likely one, and samples."""


class RLSearcher(HistorySearcher):
    """Trains a policy on draws of the surrogate, and proposes the best of what it plays.

    Before every proposal the surrogate is fitted to all trials and the policy trained a little more on
    worlds drawn from it, under limits around the goal's (all limits, for a whole front). It then plays
    greedily and by sampling under a spread of limits. The batch is chosen by expected improvement among
    those plans and the knapsack's on the same surrogate.

    It starts from the problem's policy, by default the shipped one, which was trained on synthetic workloads;
    from an untrained one, with a warning, where that cannot be used. The policy carries over from proposal to
    proposal, so the same calls give the same proposals; a resumed search trains anew on all trials.

    Args:
        problem: The problem.
        seed: Seeds the network, its training and the choice of plans.
        settings: How the policy is trained.
    """

    name = "rl"

    def __init__(
        self,
        problem: Problem,
        seed: int,
        *,
        settings: PPOSettings = DEFAULTS,
    ) -> None:
        super().__init__(problem, seed)
        self._settings = settings
        self._origin = "untrained"
        self._trainer: Trainer | None = None
        self.trained_iterations = 0

    def policy(self) -> Policy | None:
        """Return the policy as trained so far; `None` before any training."""
        from autoprec.agents.policy_file import export_policy

        if self._trainer is None:
            return None
        training = {"from": self._origin, "iterations": self.trained_iterations}
        return export_policy(self._trainer.state(), training)

    def close(self) -> None:
        """Let go of the learner and its policy."""
        self._trainer = None

    def _candidates(self, count: int, rng: np.random.Generator) -> Iterable[Sequence[int]]:
        problem, history = self.problem, self.history
        if problem.space.size == 1:
            return []
        surrogate = Surrogate(problem.space, problem.profile, problem.goal).fit(history.trials)
        return promising_plans(history, surrogate, count, rng, self._play(surrogate))

    def _play(self, surrogate: Surrogate) -> Ints:
        """Train on the surrogate and return distinct plans that the policy plays."""
        whole = self.problem.goal.whole_front
        factors = np.unique(FRONT_LIMITS) if whole else np.array([0.5, 0.7, 0.85, 1.0, 1.2, 1.5])
        settings = self._settings
        iterations = settings.first_iterations if self._trainer is None else settings.iterations
        trainer = self._ready(surrogate, (float(factors.min()), float(factors.max())))
        rewards = trainer.train(surrogate, iterations)
        self.trained_iterations += len(rewards)
        limits = np.repeat(factors * self.problem.goal.max_quality_drop, SAMPLES)
        greedy = np.tile(np.arange(SAMPLES) == 0, len(factors))
        return np.unique(trainer.play(surrogate, limits, greedy), axis=0)

    def _ready(self, surrogate: Surrogate, limit_factors: tuple[float, float]) -> Trainer:
        from autoprec.agents.policy_file import PolicyError, import_policy
        from autoprec.agents.pretrain import pretrained_policy
        from autoprec.agents.rl_trainer import Trainer

        if self._trainer is None:
            self._trainer = Trainer(self.seed, surrogate, limit_factors, self._settings)
            if self._settings.hidden == DEFAULTS.hidden:
                try:
                    start = self.problem.policy or pretrained_policy()
                    self._trainer.load(import_policy(start))
                    self._origin = start.origin
                except PolicyError as error:
                    logging.getLogger(__name__).warning("rl starts from an untrained policy: %s", error)
        return self._trainer
