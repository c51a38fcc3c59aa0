"""A search that measures several plans at once."""

from __future__ import annotations

import threading
import time

import pytest

from autoprec.agents.evaluate import run_search
from autoprec.agents.random_search import RandomSearcher
from autoprec.agents.searcher import Problem, make_searcher
from autoprec.agents.warm_start import initial_plans
from autoprec.envs.space import Goal
from autoprec.envs.synthetic import synthetic_landscape

WORKERS = 4


@pytest.fixture
def landscape():
    return synthetic_landscape(3, 5)


@pytest.fixture
def problem(landscape):
    return Problem(landscape.space, landscape.profile, Goal("latency", landscape.max_quality_drop))


class Device:
    """Measures as the landscape does, slowly, and counts how many plans it measures at once."""

    def __init__(self, landscape) -> None:
        self.landscape = landscape
        self.lock = threading.Lock()
        self.now = self.most = 0
        self.measured = []

    def evaluate(self, plan, name):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.measured.append(plan)
        time.sleep(0.01)
        with self.lock:
            self.now -= 1
        return self.landscape.evaluate(plan, name)


@pytest.mark.parametrize("name", ["random", "ilp", "hillclimb"])
def test_devices_are_kept_busy_and_no_plan_is_measured_twice(landscape, problem, name):
    device, initial = Device(landscape), initial_plans(problem)
    trials = run_search(
        make_searcher(name, problem, 0), device.evaluate, 30, initial=initial, workers=WORKERS
    )
    assert len(trials) == 30 == len(set(device.measured)) and device.most == WORKERS
    assert {trial.assignment for trial in trials} == set(device.measured) >= set(initial)


def test_it_goes_on_from_earlier_trials_and_ends_with_the_space(landscape, problem):
    first = run_search(RandomSearcher(problem, 0), landscape.evaluate, 7, workers=WORKERS)
    device = Device(landscape)
    whole = run_search(RandomSearcher(problem, 0), device.evaluate, 20, already=first, workers=WORKERS)
    assert whole[:7] == first and len(whole) == 20
    assert not {trial.assignment for trial in first} & set(device.measured)
    small = synthetic_landscape(0, 2)
    everything = Problem(small.space, small.profile, Goal("latency", small.max_quality_drop))
    trials = run_search(RandomSearcher(everything, 0), small.evaluate, None, workers=WORKERS)
    assert len(trials) == small.space.size


def test_runs_in_flight_are_waited_for_when_it_is_to_stop(landscape, problem):
    device = Device(landscape)
    trials = run_search(
        RandomSearcher(problem, 0), device.evaluate, None, workers=WORKERS,
        should_stop=lambda: len(device.measured) >= 9,
    )  # fmt: skip
    assert 9 <= len(trials) == len(device.measured) <= 9 + WORKERS


def test_what_breaks_a_measurement_ends_the_search(landscape, problem):
    def evaluate(plan, name):
        if len(seen) == 5:
            raise RuntimeError("the store is gone")
        seen.append(plan)
        return landscape.evaluate(plan, name)

    seen = []
    with pytest.raises(RuntimeError, match="the store is gone"):
        run_search(RandomSearcher(problem, 0), evaluate, 50, workers=WORKERS)
