"""Another budget, memory limit or objective, answered from what the store holds: no run is measured.

The surrogate of a search is fitted again to every run of the same workload, device and runtime, and the
knapsack is solved on it. What comes out is a prediction, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from autoprec.agents.ilp import knapsack_plans
from autoprec.envs.landscape import Landscape
from autoprec.envs.plans import assignment_of, reformed
from autoprec.envs.space import FORMAT_NAMES, Assignment, Goal, Profile, SearchSpace, Trial
from autoprec.envs.surrogate import Surrogate
from autoprec.execute import trial_of
from autoprec.kernels.calibration import Calibrations, calibrations_from_data
from autoprec.plan import Evidence, Interval, Plan, Prediction
from autoprec.store.records import StoredPlan
from autoprec.store.store import Store

SURE = 0.8
"""Probability of keeping the limit from which the cheapest plan is taken."""
_SPREAD = 1.96
"""Standard deviations to each side of an interval of 95%."""


@dataclass(frozen=True)
class Known:
    """What the store holds for one context.

    Attributes:
        template: A plan of its units.
        evidence: That plan's: where and on what the runs were measured.
        runtime: What executes its plans.
        space: Every format that runs natively.
        profile: Of its units.
        calibrations: Of its modules.
        trials: Every measured run, each plan once, the newest counts.
    """

    template: Plan
    evidence: Evidence
    runtime: str
    space: SearchSpace
    profile: Profile
    calibrations: dict[str, Calibrations]
    trials: tuple[Trial, ...]


def known_of(store: Store, stored: StoredPlan) -> Known | None:
    """Return what the store holds for the context of a plan, or `None` where its profile is gone."""
    template = stored.read()
    names = [unit.name for unit in template.units]
    assert template.evidence is not None, "the store takes no plan without"
    for payload in store.profiles(stored.context_key):
        if "calibrations" not in payload:
            continue  # an earlier version's
        landscape = Landscape.from_data(payload["landscape"], "stored profile")
        if list(landscape.space.units) != names:
            continue
        profile = landscape.profile
        # What one goal had left out as beaten may be what another asks for.
        space = SearchSpace(landscape.space.units, ~np.isnan(profile.time), landscape.space.baseline)
        trials: dict[Assignment, Trial] = {}
        for run in store.context_runs(stored.context_key, stored.job_id):
            assignment = assignment_of(run.formats)
            if space.feasible(assignment):
                trials[assignment] = trial_of(run, assignment)
        runtime = store.context(stored.context_key).device.runtime
        calibrations = calibrations_from_data(payload["calibrations"])
        return Known(
            template, template.evidence, runtime, space, profile, calibrations, tuple(trials.values())
        )
    return None


def rank_of(plan: Plan) -> tuple[bool, float]:
    """Order predicted plans: those that keep their limit with a probability of `SURE` first, then by cost."""
    assert plan.prediction is not None
    found = plan.prediction
    cost = float(found.plan_bytes) if found.objective == "memory" else 1 / found.speedup.value
    return _rank(found.keeps_limits, cost)


def _rank(keeps: float, cost: float) -> tuple[bool, float]:
    return keeps < SURE, cost if keeps >= SURE else -keeps


def predict_plan(known: Known, goal: Goal, seed: int = 0) -> Plan:
    """Return the plan that is expected to be best, with what is expected of it.

    The cheapest of those that keep the limit with a probability of at least `SURE`; where there is none, the
    most probable one.
    """
    space, trials = known.space, known.trials
    surrogate = Surrogate(space, known.profile, goal).fit(trials)
    plans = [space.baseline, *knapsack_plans(surrogate, (), np.random.default_rng(seed))]
    expected = surrogate.predict(np.array(plans, np.intp))
    sure = ndtr((goal.max_quality_drop - expected.drop_mean) / expected.drop_std) * expected.ok_probability
    if goal.max_bytes is not None:
        sure = sure * (expected.bytes <= goal.max_bytes)
    cost = expected.bytes if goal.objective == "memory" else expected.time_mean
    best = min(range(len(plans)), key=lambda i: _rank(float(sure[i]), float(cost[i])))
    time, spread = float(expected.time_mean[best]), _SPREAD * float(expected.time_std[best])
    drop, wide = float(expected.drop_mean[best]), _SPREAD * float(expected.drop_std[best])
    made = reformed(
        known.template,
        [FORMAT_NAMES[k] for k in plans[best]],
        [known.profile.implementations[u][k] for u, k in enumerate(plans[best])],
        known.calibrations,
        known.runtime,
    )
    prediction = Prediction(
        metric=known.evidence.quality.metric,
        weights=known.evidence.weights,
        shapes=known.evidence.shapes,
        device=known.evidence.device,
        objective=goal.objective,
        max_quality_drop=goal.max_quality_drop,
        max_bytes=goal.max_bytes,
        speedup=Interval(value=1 / time, low=1 / (time + spread), high=1 / max(time - spread, 0.1 * time)),
        quality_drop=Interval(value=drop, low=drop - wide, high=drop + wide),
        keeps_limits=float(np.clip(sure[best], 0.0, 1.0)),
        plan_bytes=int(expected.bytes[best]),
        runs=len(trials),
    )
    return made.model_copy(update={"prediction": prediction})
