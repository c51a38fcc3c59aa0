import pytest
import torch
from store_samples import make_plan
from torch import nn

from autoprec.envs.plans import as_given, reformed
from autoprec.envs.space import Goal
from autoprec.playoff import fastest
from autoprec.prepare import prepare


class Wide:
    """One row through a weight of 16 MB: int8 weights are read several times faster."""

    def build_model(self):
        return nn.Sequential(nn.Linear(2048, 2048))

    def example_inputs(self):
        return torch.ones(1, 2048)


@pytest.fixture(scope="module")
def measurer_and_plans():
    prepared = prepare(Wide, "latency")
    came = as_given(prepared.discovery, "a")
    half = reformed(came, ["fp16_weight"], [["fbgemm"]], {}, "eager")
    return prepared.measurer, came, half


def claiming(plan, speedup):
    """Give a plan evidence that says it is so fast."""
    evidence = make_plan().evidence
    interval = evidence.speedup.model_copy(update={"value": speedup, "low": speedup, "high": speedup})
    return plan.model_copy(update={"evidence": evidence.model_copy(update={"speedup": interval})})


def test_what_is_faster_side_by_side_wins_whatever_its_own_figure_says(measurer_and_plans):
    measurer, came, half = measurer_and_plans
    plans = {"first": claiming(came, 1.5), "second": claiming(half, 1.0)}
    name, notes = fastest(measurer, plans, Goal("latency", 0.01), lambda: 8.0)
    assert name == "second", notes
    assert notes[0].startswith("timed against each other, second runs at ")


def test_nothing_is_timed_where_it_cannot_matter(measurer_and_plans):
    measurer, came, half = measurer_and_plans
    far = {"first": claiming(came, 3.0), "second": claiming(half, 1.0)}
    assert fastest(measurer, far, Goal("latency", 0.01), lambda: 8.0) == ("first", [])
    same = {"first": claiming(came, 1.1), "second": claiming(came, 1.0)}
    assert fastest(measurer, same, Goal("latency", 0.01), lambda: 8.0) == ("first", [])
    close = {"first": claiming(half, 1.1), "second": claiming(came, 1.0)}
    assert fastest(measurer, close, Goal("memory", 0.01), lambda: 8.0)[1] == []


def test_a_plan_that_fails_beside_another_is_passed_over(measurer_and_plans):
    measurer, came, half = measurer_and_plans
    broken = reformed(half, ["fp16_weight"], [["no such kernel"]], {}, "eager")
    plans = {"first": claiming(came, 1.1), "second": claiming(broken, 1.0)}
    name, notes = fastest(measurer, plans, Goal("latency", 0.01), lambda: 8.0)
    assert name == "first" and "could not be timed together" in notes[0]
