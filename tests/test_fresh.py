from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import autoprec
from autoprec.agents.searcher import Problem
from autoprec.envs.profile import profile_workload
from autoprec.envs.search_space import search_space
from autoprec.envs.space import FORMAT_NAMES, Goal, Trial
from autoprec.errors import WorkloadError
from autoprec.execute import failed_run
from autoprec.facts import facts_of
from autoprec.fresh import FreshMeasuring
from autoprec.plan import AS_GIVEN
from autoprec.prepare import prepare
from autoprec.store.records import Run

FP32, BF16 = FORMAT_NAMES.index("fp32"), FORMAT_NAMES.index("bf16")


class Two:
    def build_model(self):
        return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))

    def example_inputs(self):
        return torch.ones(1, 64)


def decide(speedups, objective="latency"):
    """Decide on one trial, (bf16, fp32), where the fresh figures are given; 0 stands for a failure."""
    prepared = prepare(Two, "latency")
    goal = Goal(objective, 0.01)
    profiled = profile_workload(prepared.measurer, prepared.discovery, "latency", formats=["bf16"])
    packed = tuple(
        ("onednn_packed",) if k == FP32 else names
        for k, names in enumerate(profiled.profile.implementations[0])
    )
    profiled = replace(profiled, profile=replace(profiled.profile, implementations=(packed, packed)))
    profiled.profile.time[:] = np.nan
    profiled.profile.time[:, [FP32, BF16]] = (0.5, 0.1)
    space = search_space(prepared.discovery, profiled.profile, goal, ["bf16"])

    def measure(request):
        formats = tuple(unit.format for unit in request.plan.units)
        speedup = 1.0 if request.searcher == AS_GIVEN else speedups[formats]
        if speedup == 0:
            return failed_run(request, "no memory", 1.0)
        over = None
        if request.lossless is not None:
            over = speedup / speedups[tuple(unit.format for unit in request.lossless.units)]
        names = ("speedup", "speedup_low", "speedup_high")
        figures = dict.fromkeys(names, speedup)
        figures |= dict.fromkeys(("over_lossless", "over_lossless_low", "over_lossless_high"), over)
        return Run(
            plan_key=request.plan.key, formats=formats, status="ok", split=request.split, fresh=request.fresh,
            searcher=request.searcher, baseline_seconds=1.0, plan_seconds=1 / speedup, pairs=6,
            held_bytes=prepared.measurer.baseline_bytes, quality=1.0, quality_drop=0.0, wall_seconds=1.0,
            **figures,
        )  # fmt: skip

    fresh = FreshMeasuring(
        facts_of(prepared),
        prepared.context,
        profiled,
        Problem(space, profiled.profile, goal),
        None,
        measure,
        1,
        {},
        lambda: 60.0,
    )
    trials = [Trial((BF16, FP32), True, 1 / 1.5, 1.0, 0.0, "random")]
    return fresh.decide(trials, lambda what, share: None)


def test_the_bound_is_the_fastest_plan_measured_where_the_fastest_formats_are_slow_together():
    verdict = decide({("fp32", "fp32"): 1.0, ("bf16", "fp32"): 1.5, ("bf16", "bf16"): 0.7})
    assert list(verdict.bound.formats.values()) == ["bf16", "fp32"]
    assert verdict.bound.evidence.speedup.value == 1.5
    assert verdict.best == verdict.bound
    assert not any("leave it as it is" in note for note in verdict.notes)


def test_where_nothing_is_faster_than_the_model_as_it_came_the_best_plan_changes_nothing():
    verdict = decide({("fp32", "fp32"): 0.9, ("bf16", "fp32"): 0.98, ("bf16", "bf16"): 0.7})
    assert verdict.best == verdict.lossless
    assert {m.implementation for unit in verdict.best.units for m in unit.modules} == {"aten"}
    assert verdict.best.evidence.searcher == AS_GIVEN
    assert any("leave it as it is" in note for note in verdict.notes)


def test_where_other_kernels_are_slower_a_gain_is_held_against_the_model_as_it_came():
    verdict = decide({("fp32", "fp32"): 0.9, ("bf16", "fp32"): 1.2, ("bf16", "bf16"): 0.7})
    assert list(verdict.best.formats.values()) == ["bf16", "fp32"]
    assert verdict.best.evidence.speedup_over_lossless.value == 1.2
    assert verdict.lossless.evidence.searcher == AS_GIVEN
    assert any("gain nothing here: together they run at 0.900x" in note for note in verdict.notes)


def test_a_lossless_plan_that_fails_gives_way_to_the_model_as_it_came():
    verdict = decide({("fp32", "fp32"): 0, ("bf16", "fp32"): 1.2, ("bf16", "bf16"): 0.7})
    assert verdict.lossless.evidence.searcher == AS_GIVEN
    assert verdict.best.evidence.speedup.value == 1.2


def test_for_memory_other_kernels_that_hold_as_much_and_are_slower_are_no_gain():
    verdict = decide({("fp32", "fp32"): 0.9, ("bf16", "fp32"): 0.8, ("bf16", "bf16"): 0.7}, "memory")
    assert verdict.lossless.evidence.searcher == AS_GIVEN


class Silent(Two):
    """The example inputs see nothing of the weights: every format loses nothing there, and much elsewhere."""

    def build_model(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 64, bias=False))

    def example_inputs(self):
        return torch.zeros(1, 64)

    def quality(self, model):
        x = torch.randn(50, 64, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            return -float((model(x) - self.build_model()(x)).norm())


def test_the_lossless_plan_changes_no_format_whatever_the_profile_saw():
    result = autoprec.tune(
        Silent, objective="memory", budget=3, searcher="random", max_quality_drop=0, store="sqlite://"
    )
    assert set(result.lossless.formats.values()) == {"fp32"}
    assert result.lossless.evidence.quality.drop < 1e-3
    assert result.best is not None and result.best.evidence.quality.drop <= 0


def test_outputs_without_elements_are_refused():
    class Empty(Two):
        def example_inputs(self):
            return torch.ones(0, 64)

    with pytest.raises(WorkloadError, match="output has no elements to compare"):
        prepare(Empty, "latency")
