"""What a plan's expected improvement is worth, limit by limit."""

from __future__ import annotations

import numpy as np
import pytest

from autoprec.agents.acquisition import FRONT_LIMITS, Acquisition, goal_limits, limit_weights
from autoprec.agents.evaluate import gain
from autoprec.agents.searcher import Problem
from autoprec.envs.space import Goal
from autoprec.envs.surrogate import Surrogate
from autoprec.envs.synthetic import synthetic_landscape


def test_a_limit_counts_by_the_stretch_of_drops_that_it_stands_for() -> None:
    weights = limit_weights(np.array([1.0, 4.0, 9.0]))
    assert weights * 9 / weights.sum() == pytest.approx([2.0, 4.0, 3.0])
    assert weights.mean() == pytest.approx(1)
    assert limit_weights(goal_limits(Goal("latency", 0.01))).tolist() == [1]
    # A limit of 0 leaves no stretch to weigh by.
    assert limit_weights(np.zeros(len(FRONT_LIMITS))).tolist() == [1] * len(FRONT_LIMITS)


def test_what_is_expected_of_a_plan_is_what_it_adds_to_the_hypervolume() -> None:
    """Where the surrogate knows the landscape well, the two agree over plans."""
    landscape = synthetic_landscape(5, 6, coupling=0.0)
    goal = Goal("latency", landscape.max_quality_drop, whole_front=True)
    rng = np.random.default_rng(0)
    masks = [np.flatnonzero(row) for row in landscape.space.mask]
    plans = [tuple(int(rng.choice(row)) for row in masks) for _ in range(140)]
    trials = [landscape.evaluate(plan, "x") for plan in dict.fromkeys(plans)]
    known, others = trials[:100], trials[100:]
    problem = Problem(landscape.space, landscape.profile, goal)
    surrogate = Surrogate(landscape.space, landscape.profile, goal).fit(known)
    expected = Acquisition(surrogate, known, rng).score(np.array([trial.assignment for trial in others]))
    before = gain(problem, known)
    added = np.array([gain(problem, [*known, trial]) - before for trial in others])
    assert added.max() > 1e-4
    assert np.corrcoef(expected, added)[0, 1] > 0.8
