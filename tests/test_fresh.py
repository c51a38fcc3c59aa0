import numpy as np
import torch
from torch import nn

from autoprec.agents.searcher import Problem
from autoprec.envs.profile import profile_workload
from autoprec.envs.search_space import search_space
from autoprec.envs.space import FORMAT_NAMES, Goal, Trial
from autoprec.fresh import FreshMeasuring
from autoprec.prepare import prepare
from autoprec.store.records import Run

FP32, BF16 = FORMAT_NAMES.index("fp32"), FORMAT_NAMES.index("bf16")


class Two:
    def build_model(self):
        return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))

    def example_inputs(self):
        return torch.ones(1, 64)


def decide(speedups):
    """Decide on one trial, (bf16, fp32), where the fresh figures are given."""
    prepared = prepare(Two, "latency")
    goal = Goal("latency", 0.01)
    profiled = profile_workload(prepared.measurer, prepared.discovery, "latency", formats=["bf16"])
    profiled.profile.time[:] = np.nan
    profiled.profile.time[:, [FP32, BF16]] = (0.5, 0.1)
    space = search_space(prepared.discovery, profiled.profile, goal, ["bf16"])

    def measure(plan, *, searcher, split, timing, fresh, lossless):
        formats = tuple(unit.format for unit in plan.units)
        figures = dict.fromkeys(("speedup", "speedup_low", "speedup_high"), speedups[formats])
        return Run(
            plan_key=plan.key, formats=formats, status="ok", split=split, fresh=fresh, searcher=searcher,
            baseline_seconds=1.0, plan_seconds=1 / speedups[formats], pairs=6, held_bytes=1, quality=1.0,
            quality_drop=0.0, wall_seconds=1.0, **figures,
        )  # fmt: skip

    fresh = FreshMeasuring(
        prepared, profiled, Problem(space, profiled.profile, goal), None, measure, {}, lambda: 60.0
    )
    trials = [Trial((BF16, FP32), True, 1 / 1.5, 1.0, 0.0, "random")]
    return fresh.decide(trials, lambda what, share: None)


def test_the_bound_is_the_fastest_plan_measured_where_the_fastest_formats_are_slow_together():
    verdict = decide({("fp32", "fp32"): 1.0, ("bf16", "fp32"): 1.5, ("bf16", "bf16"): 0.7})
    assert list(verdict.bound.formats.values()) == ["bf16", "fp32"]
    assert verdict.bound.evidence.speedup.value == 1.5
    assert not any("leave the model" in note for note in verdict.notes)


def test_a_best_plan_that_is_slower_than_the_model_as_it_came_is_said_to_be():
    verdict = decide({("fp32", "fp32"): 0.9, ("bf16", "fp32"): 0.98, ("bf16", "bf16"): 0.7})
    assert any("leave the model as it is" in note for note in verdict.notes)
