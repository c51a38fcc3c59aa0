"""The portfolio credits its members, remembers after a resume, and does not lose to them."""

from __future__ import annotations

import numpy as np
from regret import regret

from autoprec.agents.evaluate import run_search
from autoprec.agents.portfolio import Portfolio
from autoprec.agents.searcher import Problem, make_searcher
from autoprec.agents.warm_start import initial_plans
from autoprec.envs.space import Goal, Trial
from autoprec.envs.synthetic import synthetic_landscape

MEMBERS = ("ilp", "greedy", "hillclimb", "random")


def test_every_trial_carries_the_member_that_proposed_it() -> None:
    landscape = synthetic_landscape(0, 8)
    problem = Problem(landscape.space, landscape.profile, Goal("latency", landscape.max_quality_drop))
    searcher = Portfolio(problem, 0, MEMBERS)
    trials = run_search(searcher, landscape.evaluate, 60, initial=initial_plans(problem))
    by_member = {name: sum(trial.searcher == name for trial in trials) for name in (*MEMBERS, "initial")}
    assert sum(by_member.values()) == 60
    assert by_member["ilp"] > by_member["random"]


def test_who_improves_gets_more_of_the_budget() -> None:
    """A member that never improves anything loses its share to one that does."""
    landscape = synthetic_landscape(1, 10)
    problem = Problem(landscape.space, landscape.profile, Goal("latency", landscape.max_quality_drop))
    searcher = Portfolio(problem, 0, ("greedy", "random"))
    plans = [tuple(plan) for plan in np.unique(np.random.default_rng(0).choice([0, 1], (60, 10)), axis=0)]
    searcher.observe(
        [
            Trial(plan, True, 1.0 - 0.01 * step, 1.0, 0.0, "greedy")
            if step % 2
            else Trial(plan, True, 2.0, 1.0, 0.0, "random")
            for step, plan in enumerate(plans[:40])
        ]
    )
    proposed = searcher.propose(20)
    credited = [searcher.proposer(plan) for plan in proposed]
    assert credited.count("greedy") > 3 * credited.count("random")


def test_a_resumed_portfolio_remembers_its_members_record() -> None:
    landscape = synthetic_landscape(2, 8, time_noise=0.01)
    problem = Problem(landscape.space, landscape.profile, Goal("latency", landscape.max_quality_drop))
    initial = initial_plans(problem)
    stop = len(initial) + 12
    whole = run_search(Portfolio(problem, 0, MEMBERS), landscape.evaluate, stop + 12, initial=initial)
    first = whole[:stop]
    rest = run_search(
        Portfolio(problem, 0, MEMBERS), landscape.evaluate, stop + 12, initial=initial, already=first
    )
    assert rest == whole


def test_it_keeps_up_with_its_best_member() -> None:
    missed: dict[str, list[float]] = {"portfolio": [], "ilp": [], "random": []}
    for seed in range(3):
        landscape = synthetic_landscape(seed, 5, time_noise=0.002, drop_noise=0.02)
        problem = Problem(landscape.space, landscape.profile, Goal("latency", landscape.max_quality_drop))
        optimum = landscape.optimum(problem.goal)
        assert optimum is not None
        for name, values in missed.items():
            searcher = (
                Portfolio(problem, seed, MEMBERS)
                if name == "portfolio"
                else make_searcher(name, problem, seed)
            )
            trials = run_search(searcher, landscape.evaluate, 36, initial=initial_plans(problem))
            values.append(regret(trials, problem.goal, optimum))
    assert np.mean(missed["portfolio"]) <= np.mean(missed["ilp"]) + 0.03
    assert np.mean(missed["portfolio"]) < np.mean(missed["random"]) / 3
