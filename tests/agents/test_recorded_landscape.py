"""Searchers on a landscape whose every plan was measured for real."""

from __future__ import annotations

from pathlib import Path

import pytest
from regret import regret

from autoprec.agents.evaluate import run_search
from autoprec.agents.searcher import Problem, make_searcher
from autoprec.agents.warm_start import initial_plans
from autoprec.envs.landscape import Landscape
from autoprec.envs.space import Goal

RECORDED = Path(__file__).parent.parent / "assets" / "mnist_cnn_landscape.json.gz"


def test_the_recorded_landscape_holds_every_plan() -> None:
    landscape = Landscape.load(RECORDED)
    assert landscape.complete
    assert len(landscape.trials) == landscape.space.size == 4**5


@pytest.mark.parametrize("name", ["ilp", "hillclimb", "greedy", "nsga2"])
def test_a_tenth_of_the_runs_finds_most_of_the_gain(name: str) -> None:
    landscape = Landscape.load(RECORDED)
    goal = Goal("latency", landscape.max_quality_drop)
    optimum = landscape.optimum(goal)
    assert optimum is not None
    problem = Problem(landscape.space, landscape.profile, goal)
    searcher = make_searcher(name, problem, seed=0)
    trials = run_search(searcher, landscape.evaluate, 102, initial=initial_plans(problem))
    assert len(trials) <= 102
    assert regret(trials, goal, optimum) < 0.15
