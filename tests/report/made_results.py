"""Real `TuneResult`s of searches over synthetic landscapes, for the report's tests."""

from dataclasses import replace

import numpy as np

from autoprec.agents.evaluate import run_search
from autoprec.agents.searcher import Problem, make_searcher
from autoprec.agents.warm_start import cheapest_plan, initial_plans
from autoprec.envs.space import FORMAT_NAMES, Goal, best_trial, pareto_front
from autoprec.envs.synthetic import synthetic_landscape
from autoprec.plan import Device, Evidence, Interval, ModulePlan, Plan, Quality, UnitPlan
from autoprec.result import Spending, TuneResult


def encoder_names(units):
    """Names as unit discovery gives them for an encoder of any depth."""
    names = ["encoder.embeddings.word_embeddings"]
    parts = (
        "attention.self.{query,key,value}",
        "attention.output.dense",
        "intermediate.dense",
        "output.dense",
    )
    for index in range(units - 1):
        names.append(f"encoder.layer.{index // 4}.{parts[index % 4]}")
    return tuple(names[:units])


def make_plan(landscape, trial, lossless_time, *, searcher=None, names=None, objective="latency"):
    """Return a plan with the evidence that fresh measuring would give it."""
    names = names or landscape.space.units
    units = tuple(
        UnitPlan(
            name=name,
            format=FORMAT_NAMES[k],
            modules=(ModulePlan(path=name, operation="linear", implementation="synthetic"),),
        )
        for name, k in zip(names, trial.assignment, strict=True)
    )
    speed, over = 1 / trial.time, lossless_time / trial.time
    profile = landscape.profile
    return Plan(
        architecture="a" * 32,
        units=units,
        evidence=Evidence(
            workload=landscape.name,
            fingerprint="f" * 32,
            weights="e" * 32,
            objective=objective,
            max_quality_drop=landscape.max_quality_drop,
            baseline_ms=1e3 * profile.baseline_seconds,
            plan_ms=1e3 * profile.baseline_seconds * trial.time,
            speedup=Interval(value=speed, low=0.985 * speed, high=1.015 * speed),
            speedup_over_lossless=Interval(value=over, low=0.985 * over, high=1.015 * over),
            baseline_bytes=profile.baseline_bytes,
            plan_bytes=profile.plan_bytes(landscape.space, trial.assignment),
            quality=Quality(
                metric="cosine to the fp32 embeddings",
                split="final",
                baseline=1.0,
                plan=1.0 - trial.drop,
                drop=trial.drop,
                reported={"Spearman": (0.8213, 0.8213 - trial.drop / 3)},
            ),
            shapes=("input_ids int64[1, 16]",),
            device=Device(
                name="Example CPU @ 2.50GHz", capability="AVX2", runtime="eager", threads=2,
                versions={"python": "3.11.4", "torch": "2.13.0"},
            ),
            searcher=searcher or trial.searcher,
            measured_runs=100,
            pairs=40,
            measured_at="2026-01-01T00:00:00+00:00",
        ),
    )  # fmt: skip


def make_result(
    units=28,
    *,
    objective="latency",
    runs=96,
    failing=1,
    whole_front=False,
    max_bytes=None,
    workload="minilm",
    names=None,
    searchers=("random", "hillclimb", "greedy", "ilp"),
):
    """Search a synthetic landscape with several searchers and return what a job would give back."""
    landscape = synthetic_landscape(7, units, time_noise=0.01, drop_noise=0.1, failing=failing)
    space = replace(landscape.space, units=names or encoder_names(units))
    goal = Goal(objective, landscape.max_quality_drop, whole_front, max_bytes)
    problem = Problem(space, landscape.profile, goal)
    trials = []
    for turn, name in enumerate(searchers, start=1):
        searcher = make_searcher(name, problem, seed=turn)
        trials = run_search(
            searcher,
            landscape.evaluate,
            runs * turn // len(searchers),
            initial=initial_plans(problem) if turn == 1 else (),
            already=trials,
        )
    lossless = landscape.evaluate(space.baseline, "lossless")
    bound = landscape.evaluate(cheapest_plan(problem), "bound")
    best = best_trial(trials, goal)

    def plan(trial):
        return make_plan(landscape, trial, lossless.time, names=space.units, objective=objective)

    return TuneResult(
        best=plan(best) if best else None,
        lossless=plan(lossless),
        front=tuple(plan(trial) for trial in pareto_front(trials, goal)[:12]),
        bound=plan(bound) if bound.ok else None,
        notes=("quality has no held-out split: winners were judged on the data they were chosen on",),
        goal=goal,
        space=space,
        profile=with_reasons(landscape.profile, landscape.space),
        trials=tuple(trials),
        failures=tuple(
            (tuple(FORMAT_NAMES[k] for k in trial.assignment), "output is not finite in unit 3")
            for trial in trials
            if not trial.ok
        ),
        left={
            "encoder.pooler.activation": "not run by the example inputs",
            "encoder.norm": "LayerNorm: no formats",
        },
        workload=workload,
        baseline_quality=1.0,
        quality_name="mean cosine to the fp32 embeddings",
        job_id="0123456789",
        store="autoprec.db",
        cached=3,
        spending=Spending(setup=8.1, profile=31.0, measuring=212.0, thinking=24.0, fresh=63.0),
    )


def with_reasons(profile, space):
    """Give the formats that the landscape does not offer the reasons that a machine would give."""
    reasons = {
        "fp16": "no fp16 matmul on this processor",
        "fp8_e4m3": "emulated: no kernel of this format on this device",
        "fp8_block": "emulated: no kernel of this format on this device",
    }
    rng = np.random.default_rng(0)
    error = profile.error.copy()
    for name in ("fp8_e4m3", "fp8_block"):
        error[:, FORMAT_NAMES.index(name)] = rng.lognormal(np.log(0.03), 0.4, len(error))
    rows = tuple(
        tuple(
            "" if space.mask[u, k] else reasons.get(name, "refused for this shape")
            for k, name in enumerate(FORMAT_NAMES)
        )
        for u in range(len(space.units))
    )
    return replace(profile, error=error, reasons=rows)
