"""The knapsack is solved exactly, and says nothing while it does."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoprec.agents.ilp import knapsack_plans, solve_knapsack
from autoprec.envs.space import Goal
from autoprec.envs.surrogate import Surrogate
from autoprec.envs.synthetic import all_plans, synthetic_landscape

SMALL = synthetic_landscape(0, 4, formats=("fp32", "bf16", "int8_dynamic", "int4_weight_only"))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 2.0))
def test_it_finds_what_trying_every_plan_finds(seed: int, limit: float) -> None:
    rng = np.random.default_rng(seed)
    shape = SMALL.space.mask.shape
    cost, load = rng.uniform(0, 1, shape), rng.lognormal(-2, 2, shape)
    load[np.arange(shape[0]), list(SMALL.space.baseline)] = 0.0
    plan = solve_knapsack(SMALL.space, cost, [(load, limit)])
    rows = np.arange(shape[0])
    best = min(
        cost[rows, list(other)].sum()
        for other in all_plans(SMALL.space)
        if load[rows, list(other)].sum() <= limit
    )
    assert plan is not None
    assert load[rows, list(plan)].sum() <= limit * (1 + 1e-5)
    assert cost[rows, list(plan)].sum() == pytest.approx(best, abs=1e-3)


def test_it_returns_nothing_where_nothing_fits() -> None:
    ones = np.ones(SMALL.space.mask.shape)
    assert solve_knapsack(SMALL.space, ones, [(ones, 3.5)]) is None
    assert solve_knapsack(SMALL.space, ones, [(ones, -1.0)]) is None


def test_two_limits_hold_together() -> None:
    rng = np.random.default_rng(0)
    shape = SMALL.space.mask.shape
    cost, first, second = (rng.uniform(0, 1, shape) for _ in range(3))
    plan = solve_knapsack(SMALL.space, cost, [(first, 2.0), (second, 2.0)])
    assert plan is not None
    rows = np.arange(shape[0])
    assert max(first[rows, list(plan)].sum(), second[rows, list(plan)].sum()) <= 2.0 + 1e-5


def test_excluded_plans_are_not_returned() -> None:
    cost = np.random.default_rng(1).uniform(0, 1, SMALL.space.mask.shape)
    found: list[tuple[int, ...]] = []
    for _ in range(5):
        plan = solve_knapsack(SMALL.space, cost, [], excluded=found)
        assert plan is not None
        assert plan not in found
        found.append(plan)
    rows = np.arange(len(SMALL.space.units))
    totals = [cost[rows, list(plan)].sum() for plan in found]
    assert totals == sorted(totals)


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS has a bare printf that this workload sets off without the silencing."""
    landscape = synthetic_landscape(0, 24, time_noise=0.005, drop_noise=0.02)
    goal = Goal("latency", landscape.max_quality_drop)
    rng = np.random.default_rng(0)
    plans = [landscape.space.uniform(k) for k in landscape.space.choices(0)]
    for _ in range(4):
        surrogate = Surrogate(landscape.space, landscape.profile, goal)
        surrogate.fit([landscape.evaluate(plan, "x") for plan in plans])
        plans += [plan for plan in knapsack_plans(surrogate, plans, rng) if plan not in plans]
    os.write(1, b"still here\n")
    assert capfd.readouterr().out == "still here\n"
