"""Every searcher keeps the contract of `autoprec.agents.searcher`, on landscapes whose optimum is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from regret import regret

from autoprec.agents.evaluate import run_search
from autoprec.agents.portfolio import PRIOR, Portfolio
from autoprec.agents.ppo_settings import PPOSettings
from autoprec.agents.rl import RLSearcher
from autoprec.agents.searcher import SEARCHERS, Problem, Searcher, make_searcher
from autoprec.agents.warm_start import initial_plans
from autoprec.envs.space import Goal, SearchSpace, Trial, best_trial
from autoprec.envs.synthetic import SyntheticLandscape, synthetic_landscape
from autoprec.errors import SettingError

Make = Callable[[Problem, int], Searcher]


@pytest.fixture(params=SEARCHERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(name: str) -> Iterator[Make]:
    """Make searchers as registered, with little training so that the suite stays quick."""
    made: list[Searcher] = []

    def build(problem: Problem, seed: int) -> Searcher:
        if name == "rl":
            searcher: Searcher = RLSearcher(
                problem, seed, settings=PPOSettings(first_iterations=2, iterations=1)
            )
        elif name == "portfolio":
            searcher = Portfolio(problem, seed, [member for member in PRIOR if member != "rl"])
        else:
            searcher = make_searcher(name, problem, seed)
        made.append(searcher)
        return searcher

    yield build
    for searcher in made:
        searcher.close()


def problem_of(landscape: SyntheticLandscape, **goal: object) -> Problem:
    settings = {"objective": "latency", "max_quality_drop": landscape.max_quality_drop, **goal}
    return Problem(landscape.space, landscape.profile, Goal(**settings))  # type: ignore[arg-type]


def check_proposals(problem: Problem, searcher: Searcher, plans: list[tuple[int, ...]], seen: set) -> None:
    assert len(set(plans)) == len(plans)
    for plan in plans:
        assert problem.space.feasible(plan)
        assert plan not in seen
        assert all(type(index) is int for index in plan)
        assert searcher.proposer(plan) in SEARCHERS


WORST_REGRET = {"ilp": 0.05, "rl": 0.05, "portfolio": 0.1, "greedy": 0.5, "hillclimb": 0.5, "tpe": 0.7}


def test_reaches_its_share_of_the_possible_gain(name: str, make: Make) -> None:
    missed = []
    for seed in range(3):
        landscape = synthetic_landscape(seed, 5, time_noise=0.002, drop_noise=0.01)
        problem = problem_of(landscape)
        trials = run_search(make(problem, seed), landscape.evaluate, 40, initial=initial_plans(problem))
        assert len(trials) == 40
        optimum = landscape.optimum(problem.goal)
        assert optimum is not None
        missed.append(regret(trials, problem.goal, optimum))
    assert np.mean(missed) <= WORST_REGRET.get(name, 0.9), missed


@pytest.mark.parametrize(
    "goal",
    [
        {},
        {"whole_front": True},
        {"objective": "memory"},
        {"objective": "memory", "whole_front": True},
        {"max_quality_drop": 0.0},
        {"max_bytes": 9_000_000},
    ],
    ids=str,
)
def test_proposals_are_valid_distinct_and_new(make: Make, goal: dict[str, object]) -> None:
    landscape = synthetic_landscape(3, 6, time_noise=0.01, drop_noise=0.1)
    problem = problem_of(landscape, **goal)
    searcher = make(problem, 0)
    seen: set[tuple[int, ...]] = set()
    for count in (1, 3, 8):
        plans = searcher.propose(count)
        assert len(plans) == count
        check_proposals(problem, searcher, plans, seen)
        searcher.observe([landscape.evaluate(plan, searcher.proposer(plan)) for plan in plans])
        seen.update(plans)
        limit = problem.goal.max_bytes
        if limit is not None:
            assert all(problem.profile.plan_bytes(problem.space, plan) <= limit for plan in plans)


def test_a_seed_reproduces(make: Make) -> None:
    landscape = synthetic_landscape(4, 6, time_noise=0.01, drop_noise=0.1)
    problem = problem_of(landscape)
    runs = [run_search(make(problem, 7), landscape.evaluate, 14, batch=3) for _ in range(2)]
    assert runs[0] == runs[1]


def test_other_seeds_search_elsewhere(name: str, make: Make) -> None:
    if name == "greedy":
        pytest.skip("greedy has nothing random before its path is used up")
    landscape = synthetic_landscape(4, 12, time_noise=0.01, drop_noise=0.1)
    problem = problem_of(landscape)
    runs = [run_search(make(problem, seed), landscape.evaluate, 16, batch=4) for seed in (0, 1)]
    assert runs[0] != runs[1]


def test_a_resumed_search_measures_nothing_twice_and_goes_on(name: str, make: Make) -> None:
    landscape = synthetic_landscape(5, 6, time_noise=0.01, drop_noise=0.1)
    problem = problem_of(landscape)
    initial = initial_plans(problem)
    whole = run_search(make(problem, 1), landscape.evaluate, 24, initial=initial)
    stop = len(initial) + 8
    first = run_search(make(problem, 1), landscape.evaluate, stop, initial=initial)
    rest = run_search(make(problem, 1), landscape.evaluate, 24, initial=initial, already=first)
    assert rest[:stop] == first
    assert len({trial.assignment for trial in rest}) == 24
    if name not in ("rl", "portfolio"):
        assert rest == whole


def test_stops_when_every_plan_was_measured(make: Make) -> None:
    landscape = synthetic_landscape(6, 3, formats=("fp32", "bf16", "int8_dynamic"))
    problem = problem_of(landscape)
    searcher = make(problem, 0)
    trials = run_search(searcher, landscape.evaluate, None)
    assert len(trials) == 27
    assert searcher.propose(4) == []


def test_a_space_of_one_plan(make: Make) -> None:
    landscape = synthetic_landscape(0, 4, formats=("fp32",))
    searcher = make(problem_of(landscape), 0)
    trials = run_search(searcher, landscape.evaluate, 10)
    assert [trial.assignment for trial in trials] == [landscape.space.baseline]


def test_units_without_a_choice_stay_as_they_are(make: Make) -> None:
    landscape = synthetic_landscape(1, 5)
    mask = landscape.space.mask.copy()
    mask[1:4] = False
    mask[1:4, landscape.space.baseline[0]] = True
    space = SearchSpace(landscape.space.units, mask, landscape.space.baseline)
    problem = Problem(space, landscape.profile, Goal("latency", landscape.max_quality_drop))
    searcher = make(problem, 0)
    trials = run_search(searcher, landscape.evaluate, None)
    assert len(trials) == 36
    check_proposals(problem, searcher, [trial.assignment for trial in trials], set())


def test_failed_plans_are_results_and_are_avoided(make: Make) -> None:
    landscape = synthetic_landscape(8, 6, failing=6)
    problem = problem_of(landscape)
    initial = initial_plans(problem)
    trials = run_search(make(problem, 0), landscape.evaluate, 40, initial=initial)
    assert any(not trial.ok for trial in trials[: len(initial)])
    later = trials[30:]
    # 6 of 30 choices fail, so that a random plan runs with a chance of about a quarter.
    assert sum(trial.ok for trial in later) >= len(later) / 2
    assert best_trial(trials, problem.goal) is not None


def test_a_workload_where_everything_but_the_baseline_fails(make: Make) -> None:
    landscape = synthetic_landscape(2, 3)
    problem = problem_of(landscape)

    def evaluate(plan: tuple[int, ...], searcher: str) -> Trial:
        if plan == landscape.space.baseline:
            return landscape.evaluate(plan, searcher)
        return Trial(plan, False, np.nan, np.nan, np.nan, searcher)

    trials = run_search(make(problem, 0), evaluate, 30, initial=initial_plans(problem))
    assert len({trial.assignment for trial in trials}) == 30


@pytest.mark.parametrize("drop", [0.0, 0.003])
def test_a_constant_quality(make: Make, drop: float) -> None:
    landscape = synthetic_landscape(2, 5)
    problem = problem_of(landscape)

    def evaluate(plan: tuple[int, ...], searcher: str) -> Trial:
        trial = landscape.evaluate(plan, searcher)
        return Trial(plan, True, trial.time, trial.bytes, drop, searcher)

    trials = run_search(make(problem, 0), evaluate, 24, initial=initial_plans(problem))
    assert len({trial.assignment for trial in trials}) == 24


def test_an_unknown_name_is_refused() -> None:
    landscape = synthetic_landscape(0, 2)
    with pytest.raises(SettingError, match="unknown searcher 'genius'; use one of portfolio"):
        make_searcher("genius", problem_of(landscape), 0)


def test_the_registered_default_runs_all_members_on_one_budget() -> None:
    landscape = synthetic_landscape(3, 6, time_noise=0.005, drop_noise=0.05)
    problem = problem_of(landscape)
    searcher = make_searcher("portfolio", problem, 0)
    trials = run_search(searcher, landscape.evaluate, 40, initial=initial_plans(problem))
    searcher.close()
    proposers = {trial.searcher for trial in trials} - {"initial"}
    assert {"ilp", "rl"} <= proposers <= set(PRIOR)
    best = best_trial(trials, problem.goal)
    optimum = landscape.optimum(problem.goal)
    assert best is not None
    assert optimum is not None
    assert best.time <= optimum.time * 1.03
