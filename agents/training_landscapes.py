"""What the shipped policy is trained on: synthetic workloads without end, and recorded ones where given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoprec.agents.searcher import Problem
from autoprec.agents.warm_start import initial_plans
from autoprec.envs.additive import Floats
from autoprec.envs.landscape import Landscape
from autoprec.envs.precision_env import Truth
from autoprec.envs.space import FORMAT_NAMES, OBJECTIVES, Assignment, Goal, SearchSpace, Trial
from autoprec.envs.surrogate import Surrogate
from autoprec.envs.synthetic import SyntheticLandscape, synthetic_landscape

SEEDS = (1_000_000, 2_000_000)
"""Seeds of synthetic landscapes that training uses; comparisons use others."""
DISTRIBUTION: dict[str, Any] = {
    "units": [6, 150],
    "formats": [2, 7],
    "coupling": [0.0, 0.3, 0.6, 1.0],
    "profile_noise": [0.05, 0.15, 0.3],
    "time_noise": [0.002, 0.02],
    "drop_noise": [0.02, 0.1, 0.3],
    "root": [1.0, 0.5],
    "failing": {"share": 0.25, "most": 4},
    "objective": {"latency": 0.5, "throughput": 0.2, "memory": 0.3},
    "memory_limit": {"share": 0.25, "of_baseline": [0.3, 0.8]},
    "limit_factor": [0.3, 3.0],
    "runs": [0, 60],
    "judged": {"prior": 0.15, "posterior": 0.35, "truth": 0.5},
    "recorded": 0.5,
}
"""What is drawn for each iteration: ranges (numbers of units log-uniformly), choices and shares. `judged`
says by what plans are judged: draws of a surrogate that saw no run, or some, or the landscape itself, whose
coupling, saturation and failures the surrogate does not know. `recorded` is the share of recorded landscapes,
where given."""


@dataclass(frozen=True)
class World:
    """One iteration's workload: what the agent believes of it, and by what its plans are judged."""

    surrogate: Surrogate
    truth: Truth | None


def training_world(seed: int, iteration: int, recorded: Sequence[Landscape] = ()) -> World:
    """Return the workload of one iteration; the same arguments give the same one."""
    rng = np.random.default_rng([seed, iteration])
    if recorded and rng.uniform() < DISTRIBUTION["recorded"]:
        return _recorded_world(recorded[int(rng.integers(len(recorded)))], rng)
    low, high = np.log(DISTRIBUTION["units"])
    names = [name for name in FORMAT_NAMES if name != "fp32"]
    few, many = DISTRIBUTION["formats"]
    chosen = rng.choice(names, size=int(rng.integers(few, many + 1)), replace=False)
    failing = DISTRIBUTION["failing"]
    landscape = synthetic_landscape(
        int(rng.integers(*SEEDS)),
        round(float(np.exp(rng.uniform(low, high)))),
        formats=("fp32", *(str(name) for name in chosen)),
        time_noise=float(rng.uniform(*DISTRIBUTION["time_noise"])),
        drop_noise=float(rng.choice(DISTRIBUTION["drop_noise"])),
        coupling=float(rng.choice(DISTRIBUTION["coupling"])),
        profile_noise=float(rng.choice(DISTRIBUTION["profile_noise"])),
        root=float(rng.choice(DISTRIBUTION["root"])),
        failing=int(rng.integers(1, failing["most"] + 1)) if rng.uniform() < failing["share"] else 0,
    )
    goal = _goal(landscape, rng)
    judged = str(rng.choice(list(DISTRIBUTION["judged"]), p=list(DISTRIBUTION["judged"].values())))
    surrogate = Surrogate(landscape.space, landscape.profile, goal)
    if judged != "prior":
        plans = initial_plans(Problem(landscape.space, landscape.profile, goal))
        fewest, most = DISTRIBUTION["runs"]
        plans += _mixed(landscape.space, int(rng.integers(fewest, most + 1)), rng)
        surrogate.fit([landscape.evaluate(plan, "training") for plan in dict.fromkeys(plans)])
    return World(surrogate, _truth_of(landscape) if judged == "truth" else None)


def _goal(landscape: SyntheticLandscape | Landscape, rng: np.random.Generator) -> Goal:
    share = DISTRIBUTION["objective"]
    objective = rng.choice(len(OBJECTIVES), p=[share[name] for name in OBJECTIVES])
    low, high = np.log(DISTRIBUTION["limit_factor"])
    limit = landscape.max_quality_drop * float(np.exp(rng.uniform(low, high)))
    memory, held = DISTRIBUTION["memory_limit"], landscape.profile.baseline_bytes
    most = int(held * rng.uniform(*memory["of_baseline"])) if rng.uniform() < memory["share"] else None
    return Goal(OBJECTIVES[int(objective)], limit, max_bytes=most)


def _recorded_world(landscape: Landscape, rng: np.random.Generator) -> World:
    """Return a recorded workload with some of its runs known; a complete one is judged by its runs."""
    goal = _goal(landscape, rng)
    count = min(len(landscape.trials), int(rng.integers(4, 100)))
    known = [landscape.trials[row] for row in rng.choice(len(landscape.trials), count, replace=False)]
    surrogate = Surrogate(landscape.space, landscape.profile, goal).fit(known)
    judge = landscape.complete and rng.uniform() < DISTRIBUTION["judged"]["truth"]
    return World(surrogate, _recorded_truth(landscape.evaluate) if judge else None)


def _truth_of(landscape: SyntheticLandscape) -> Truth:
    def judge(plans: NDArray[np.intp]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        time, drop = landscape.figures(plans)
        return time, drop, ~np.isnan(time)

    return judge


def _recorded_truth(evaluate: Callable[[Assignment, str], Trial]) -> Truth:
    def judge(plans: NDArray[np.intp]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        trials = [evaluate(tuple(plan), "training") for plan in plans.tolist()]
        time, drop = (np.array([getattr(trial, name) for trial in trials]) for name in ("time", "drop"))
        return time, drop, np.array([trial.ok for trial in trials])

    return judge


def _mixed(space: SearchSpace, count: int, rng: np.random.Generator) -> list[Assignment]:
    """Return plans that change a random share of the units."""
    plans = []
    for share in rng.uniform(size=count):
        changed = rng.uniform(size=len(space.units)) < share
        plans.append(
            tuple(
                int(rng.choice(space.choices(unit))) if change else space.baseline[unit]
                for unit, change in enumerate(changed)
            )
        )
    return plans
