"""Quality on a slice of the data first: when all of the data judges, and what is learned from both."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import autoprec
from autoprec.envs import measure, slicing
from autoprec.envs.measure import Measurer
from autoprec.envs.slicing import RECENT, SAME, SHARE, SliceFirst
from autoprec.envs.space import Goal, Trial, best_trial, pareto_front
from autoprec.envs.surrogate import Surrogate
from autoprec.envs.synthetic import synthetic_landscape
from autoprec.finding import load_workload
from autoprec.runtimes.eager import EagerRuntime
from autoprec.slices import slice_indices
from autoprec.store.store import Store

LIMIT = 0.01
ITEMS = torch.linspace(0.9, 1.1, 40)
"""How much each item of the evaluation data minds a changed layer."""


class Clock:
    """Seconds, as the judge of plans sees them: one for all of the data. No digest looks into a class."""

    now = 0.0


class Sliced:
    """Eight layers. The first may change its format within the limit; each other loses four limits so."""

    def build_model(self):
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))

    def example_inputs(self):
        return torch.ones(1, 64)

    def quality(self, model, share=1.0):
        Clock.now += share
        first, *others = (getattr(layer, "format_name", "fp32") != "fp32" for layer in model)
        limits = 0.5 * first + 4 * sum(others)
        return 1.0 - LIMIT * limits * float(ITEMS[slice_indices(len(ITEMS), share)].mean())


class OnOne(SliceFirst):
    """Slices of one workload."""

    def __init__(self, measurer, goal, notes):
        super().__init__(goal, notes.append, used=measurer.loaded.has_slices)
        self.measurer = measurer

    def judge(self, quality, *, proposer):
        return super().judge(self.measurer, quality, proposer=proposer)


def slices_of(workload=Sliced, *, notes=None, whole_front=False):
    loaded = load_workload(workload)
    measurer = Measurer(loaded, loaded.build_model(), loaded.examples("latency"), EagerRuntime())
    goal = Goal("latency", LIMIT, whole_front=whole_front)
    return OnOne(measurer, goal, [] if notes is None else notes)


def candidate(drop, asked=None, off=1.0):
    """Return the quality of a candidate that loses `drop`, and `off` times that on a slice."""

    def quality(share):
        if asked is not None:
            asked.append(share)
        Clock.now += share
        return 1.0 - drop * (off if share < 1 else 1.0)

    return quality


def judge(slices, drop, *, whole=False, off=1.0, proposer="rl"):
    """Judge a candidate, learn from it, and return on which shares of the data it was judged."""
    asked = []
    proposer = None if whole else proposer
    found = slices.judge(candidate(drop, asked, off), proposer=proposer)
    slices.learn(found.drop, found.share, found.slice_drop, proposer=proposer)
    assert found.share == (1.0 if whole else asked[-1])
    return asked


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    for module in (measure, slicing):
        monkeypatch.setattr(module, "perf_counter", lambda: Clock.now)


@pytest.fixture
def learned():
    """Slices that were compared with all of the data on what a search begins with."""
    slices = slices_of()
    for factor in (0.9, 1.1, 1.05):
        assert judge(slices, 5 * LIMIT, whole=True, off=factor) == [1.0, SHARE]
    return slices


class TestWhatIsJudged:
    def test_a_bad_plan_costs_a_slice_and_one_near_the_limit_all_of_the_data(self, learned):
        assert 3 * LIMIT < learned.far < 10 * LIMIT
        assert judge(learned, 20 * LIMIT) == [SHARE]
        assert judge(learned, 2 * LIMIT) == judge(learned, -LIMIT) == [SHARE, 1.0]

    def test_a_drop_is_against_the_baseline_on_the_same_data(self):
        class Uneven(Sliced):
            def quality(self, model, share=1.0):
                Clock.now += share
                return 5.0 if share == 1 else 7.0

        slices = slices_of(Uneven)
        found = slices.judge(lambda share: 4.5 if share == 1 else 6.9, proposer=None)
        assert (found.quality, found.drop, found.share) == (4.5, 0.5, 1.0)
        assert found.slice_drop == pytest.approx(0.1)

    def test_what_a_search_begins_with_is_judged_on_all_of_the_data(self, learned):
        assert judge(learned, 50 * LIMIT, whole=True) == [1.0]  # enough of them were judged on both
        assert judge(slices_of(), 0.5 * LIMIT, whole=True) == [1.0]  # of a small loss nothing is learned

    def test_nothing_is_left_out_before_the_error_is_known(self):
        slices = slices_of()
        assert slices.far == math.inf and judge(slices, 100 * LIMIT) == [SHARE, 1.0]

    def test_the_worse_the_slice_the_further_off_a_plan_must_be(self):
        fars = []
        for off in (1.01, 1.2, 1.4):
            slices = slices_of()
            for _ in range(20):
                judge(slices, 5 * LIMIT, whole=True, off=off)
                judge(slices, 5 * LIMIT, off=off)
            fars.append(slices.far)
        assert 3 * LIMIT < fars[0] < fars[1] < fars[2]

    def test_slices_are_used_in_the_second_search_on_a_measurer_too(self):
        first = slices_of()
        judge(first, 5 * LIMIT, whole=True)
        second = OnOne(first.measurer, Goal("latency", LIMIT), [])
        assert judge(second, 5 * LIMIT, whole=True) == [1.0, SHARE]

    def test_small_drops_tell_nothing_of_large_ones(self, learned):
        before = learned.far
        assert judge(learned, 0.001 * LIMIT, off=300) == [SHARE, 1.0]
        assert learned.far == before

    def test_for_the_whole_front_less_is_left_out(self, learned):
        front = slices_of(whole_front=True)
        for factor in (0.9, 1.1, 1.05):
            judge(front, 5 * LIMIT, whole=True, off=factor)
        assert front.far == pytest.approx(10 / 3 * learned.far)

    def test_slices_rest_while_a_searcher_stays_near_the_limit(self, learned):
        for _ in range(RECENT):
            judge(learned, LIMIT, proposer="ilp")
        assert judge(learned, LIMIT, proposer="ilp") == [1.0]
        assert judge(learned, 30 * LIMIT, proposer="random") == [
            1.0
        ]  # so far it is taken to be like the other
        assert judge(learned, 30 * LIMIT, proposer="random") == [SHARE]
        for _ in range(RECENT // 2):
            judge(learned, 30 * LIMIT, proposer="ilp")
        assert judge(learned, 30 * LIMIT, proposer="ilp") == [SHARE]


class TestSlicesThatAreNotUsed:
    def test_a_quality_that_is_quick(self):
        class Quick(Sliced):
            def quality(self, model, share=1.0):
                Clock.now += 0.1 * share
                return 1.0

        assert judge(slices_of(Quick), 20 * LIMIT, whole=True) == [1.0]

    def test_a_slice_that_takes_as_long_as_all_of_the_data(self):
        def quality(share):
            Clock.now += 1
            return 0.5 if share < 1 else 0.4

        slices = slices_of()
        slices.judge(quality, proposer=None)
        assert judge(slices, 20 * LIMIT) == [1.0]

    def test_a_quality_without_a_share(self):
        class Whole(Sliced):
            def quality(self, model, **options):
                return 1.0

        assert not load_workload(Whole).has_slices
        assert judge(slices_of(Whole), 20 * LIMIT, whole=True) == [1.0]

    def test_one_that_is_the_same_whatever_the_share_is_found_out(self):
        notes = []
        slices = slices_of(notes=notes)
        for k in range(SAME):
            assert not notes
            judge(slices, (4 + k) * LIMIT, whole=True)
        assert len(notes) == 1 and "no cheap estimate" in notes[0]
        assert judge(slices, 20 * LIMIT) == [1.0] and slices.far == math.inf

    @pytest.mark.parametrize("on_slice", [lambda: float("nan"), lambda: 1 / 0, lambda: "none"])
    def test_one_that_fails_on_the_slice_of_the_model_as_it_came(self, on_slice):
        class Small(Sliced):
            def quality(self, model, share=1.0):
                return 1.0 if share == 1 else on_slice()

        notes = []
        slices = slices_of(Small, notes=notes)
        assert judge(slices, 20 * LIMIT, whole=True) == judge(slices, 20 * LIMIT) == [1.0]
        assert len(notes) == 1 and notes[0].endswith("every plan is judged on all of the data")

    def test_one_that_fails_on_the_slice_of_a_candidate(self):
        def quality(share):
            return 0.5 if share == 1 else 1 / 0

        notes = []
        slices = slices_of(notes=notes)
        found = slices.judge(quality, proposer=None)
        assert (found.quality, found.share, found.slice_drop) == (0.5, 1.0, None)
        assert len(notes) == 1 and "ZeroDivisionError" in notes[0]
        assert judge(slices, 20 * LIMIT) == [1.0]

    def test_a_candidate_that_all_of_the_data_fails_on_too_is_to_blame_itself(self):
        notes = []
        slices = slices_of(notes=notes)
        with pytest.raises(ZeroDivisionError):
            slices.judge(lambda share: 1 / 0, proposer="rl")
        assert not notes and judge(slices, 2 * LIMIT) == [SHARE, 1.0]


def test_a_trial_judged_on_a_slice_meets_no_goal_and_is_on_no_front():
    goal = Goal("latency", LIMIT)
    sliced, whole = (
        Trial((0,), True, time, 1.0, 0.0, "rl", share) for time, share in ((0.1, 0.25), (0.5, 1))
    )
    assert not sliced.meets(goal) and whole.meets(goal)
    assert best_trial([sliced, whole], goal) == whole and pareto_front([sliced, whole], goal) == [whole]


def test_the_surrogate_believes_a_drop_less_the_larger_its_error():
    landscape = synthetic_landscape(0, 6)
    goal = Goal("latency", landscape.max_quality_drop)
    plan = landscape.space.uniform(landscape.space.choices(0)[-1])
    drop = 5 * goal.max_quality_drop
    spreads = [
        Surrogate(landscape.space, landscape.profile, goal)
        .fit([Trial(plan, True, 0.5, 1.0, drop, "rl", SHARE, error)])
        .predict(np.array([plan]))
        .drop_std[0]
        for error in (0.0, drop)
    ]
    assert spreads[0] < spreads[1]


def test_a_job_leaves_out_what_is_hopeless_and_only_whole_figures_reach_its_plans(tmp_path):
    location = str(tmp_path / "store.db")
    options = {
        "objective": "memory", "formats": "fp32,bf16,fp16_weight", "searcher": "random", "budget": 14,
        "store": location,
    }  # fmt: skip
    result = autoprec.tune(Sliced, max_quality_drop=LIMIT, **options)
    with Store.open(location) as store:
        runs = store.job_runs(result.job_id)
        assert {run.quality_share for run in runs if not run.fresh} == {SHARE, 1.0}
        assert {run.quality_share for run in runs if run.fresh} == {1.0}
        sliced = [run for run in runs if run.quality_share < 1]
        assert all(run.quality_drop > 3 * LIMIT and run.slice_drop is None for run in sliced)
        assert sum(run.slice_drop is not None for run in runs) >= 1
        context_key = store.job(result.job_id).context_key
        assert all(run.quality_share == 1 for run in store.context_runs(context_key, result.job_id))
    assert result.best.evidence.quality.drop <= LIMIT
    assert {trial.share for trial in result.trials} == {SHARE, 1.0}
    assert all(trial.drop_error > 0 for trial in result.trials if trial.share < 1)

    # The same again is answered by the same runs; where more is allowed, what a slice judged is judged again.
    again = autoprec.tune(Sliced, max_quality_drop=LIMIT, **options)
    assert again.cached >= len(result.trials) - 1
    looser = autoprec.tune(Sliced, max_quality_drop=50 * LIMIT, **options)
    assert {trial.share for trial in looser.trials} == {1.0}
    assert {trial.assignment for trial in looser.trials} & {
        t.assignment for t in result.trials if t.share < 1
    }
