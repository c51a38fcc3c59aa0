"""Running a search, and the figures that say how well it did."""

from __future__ import annotations

import numpy as np
import pytest

from autoprec.agents.evaluate import hypervolume, run_search
from autoprec.agents.random_search import RandomSearcher
from autoprec.agents.searcher import Problem
from autoprec.agents.warm_start import cheapest_plan, harmless_plan, initial_plans
from autoprec.envs.space import FORMAT_NAMES, Goal, Trial
from autoprec.envs.synthetic import synthetic_landscape

GOAL = Goal("latency", 0.01)


def trial(time: float, drop: float, *, ok: bool = True) -> Trial:
    return Trial((), ok, time, 1.0, drop, "x")


def test_hypervolume_is_the_area_under_the_front() -> None:
    trials = [trial(0.5, 0.5), trial(0.75, 0.25), trial(0.9, 0.9), trial(0.1, 0.1, ok=False)]
    assert hypervolume(trials, GOAL, (1.0, 1.0)) == pytest.approx(0.5 * 0.5 + 0.25 * 0.25)
    assert hypervolume([trial(1.5, 0.0), trial(0.5, 2.0)], GOAL, (1.0, 1.0)) == 0
    assert hypervolume([trial(0.5, -0.3)], GOAL, (1.0, 1.0)) == pytest.approx(0.5)
    assert hypervolume([], GOAL, (1.0, 1.0)) == 0


def test_the_first_plans_are_measured_once_and_counted() -> None:
    landscape = synthetic_landscape(0, 6)
    problem = Problem(landscape.space, landscape.profile, GOAL)
    asked: list[tuple[tuple[int, ...], str]] = []

    def evaluate(plan: tuple[int, ...], searcher: str) -> Trial:
        asked.append((plan, searcher))
        return landscape.evaluate(plan, searcher)

    initial = initial_plans(problem)
    trials = run_search(RandomSearcher(problem, 0), evaluate, 12, initial=[*initial, initial[0]])
    assert len(trials) == len(asked) == 12
    assert [plan for plan, _ in asked[: len(initial)]] == initial
    assert {name for _, name in asked[: len(initial)]} == {"initial"}
    assert {name for _, name in asked[len(initial) :]} == {"random"}


def test_a_search_is_resumed_amid_its_first_plans() -> None:
    landscape = synthetic_landscape(0, 6)
    problem = Problem(landscape.space, landscape.profile, GOAL)
    initial = initial_plans(problem)
    first = run_search(RandomSearcher(problem, 0), landscape.evaluate, 3, initial=initial)
    rest = run_search(RandomSearcher(problem, 0), landscape.evaluate, 12, initial=initial, already=first)
    assert rest == run_search(RandomSearcher(problem, 0), landscape.evaluate, 12, initial=initial)


def test_what_was_measured_before_a_stop_is_returned_and_observed() -> None:
    landscape = synthetic_landscape(0, 6)
    problem = Problem(landscape.space, landscape.profile, GOAL)
    searcher = RandomSearcher(problem, 0)
    left = iter([False] * 7)
    trials = run_search(searcher, landscape.evaluate, None, should_stop=lambda: next(left, True), batch=3)
    assert 0 < len(trials) < 7
    assert searcher.history.trials == trials


def test_an_interrupted_batch_is_still_observed() -> None:
    landscape = synthetic_landscape(0, 6)
    problem = Problem(landscape.space, landscape.profile, GOAL)
    searcher = RandomSearcher(problem, 0)
    count = 0

    def evaluate(plan: tuple[int, ...], name: str) -> Trial:
        nonlocal count
        count += 1
        if count == 6:
            raise KeyboardInterrupt
        return landscape.evaluate(plan, name)

    with pytest.raises(KeyboardInterrupt):
        run_search(searcher, evaluate, 20)
    assert len(searcher.history.trials) == 5


def test_first_plans_are_the_lossless_one_and_the_most_promising_formats_everywhere() -> None:
    landscape = synthetic_landscape(5, 6)
    problem = Problem(landscape.space, landscape.profile, GOAL)
    plans = initial_plans(problem)
    assert plans[0] == landscape.space.baseline
    assert len(set(plans)) == len(plans)
    whole = landscape.profile.time.sum(axis=0)
    others = [index for index in landscape.space.choices(0) if index != landscape.space.baseline[0]]
    promising = sorted(others, key=lambda index: whole[index])[:2]
    assert plans[1:] == [landscape.space.uniform(index) for index in promising]
    bound = cheapest_plan(problem)
    cost = np.where(landscape.space.mask, landscape.profile.time, np.inf)
    assert cost[np.arange(6), list(bound)].sum() == pytest.approx(cost.min(axis=1).sum())


def test_a_format_of_which_the_profile_saw_no_loss_is_where_local_search_starts() -> None:
    landscape = synthetic_landscape(5, 3)
    fast = FORMAT_NAMES.index("int4_weight_only")
    landscape.profile.error[1, fast] = 1e-8
    landscape.profile.time[1, fast] = 1e-6
    problem = Problem(landscape.space, landscape.profile, GOAL)
    base = landscape.space.baseline
    assert harmless_plan(problem) == (base[0], fast, base[2])
