"""Making the policy that searches start from: trained on many synthetic workloads.

The policy lies beside this file as safetensors and JSON; `benchmarks/pretrain_policy.py` makes it anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from autoprec.agents.policy_file import compatible, export_policy
from autoprec.agents.searcher import Problem
from autoprec.agents.warm_start import initial_plans
from autoprec.envs.space import FORMAT_NAMES, Assignment, Goal, Objective, SearchSpace
from autoprec.envs.surrogate import Surrogate
from autoprec.envs.synthetic import synthetic_landscape

META = Path(__file__).parent / "pretrained.json"
WEIGHTS = META.with_suffix(".safetensors")


def pretrained_policy() -> tuple[dict[str, Any], bytes] | None:
    """Return the policy that is shipped, or `None` where it knows other features than this version."""
    meta = json.loads(META.read_text(encoding="utf-8"))
    if not compatible(meta):
        return None
    return meta, WEIGHTS.read_bytes()


def save_pretrained(meta: dict[str, Any], weights: bytes) -> None:
    """Make a policy the shipped one."""
    META.write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    WEIGHTS.write_bytes(weights)


def pretrain(
    seed: int, iterations: int, progress: Callable[[int, float], None] = lambda done, reward: None
) -> tuple[dict[str, Any], bytes]:
    """Train a policy on a new synthetic workload in every iteration and return it.

    `progress` is told the iterations done and the last mean reward.
    """
    from autoprec.agents.rl_trainer import Trainer

    surrogates = training_surrogates(seed)
    trainer = Trainer(seed, next(surrogates), (0.1, 4.0))
    for done in range(1, iterations + 1):
        (reward,) = trainer.train(next(surrogates), 1)
        progress(done, reward)
    return export_policy(trainer.state(), {"iterations": iterations, "seed": seed, "on": "synthetic"})


def training_surrogates(seed: int) -> Iterator[Surrogate]:
    """Yield surrogates of synthetic workloads, each fitted to some runs, without end."""
    rng = np.random.default_rng(seed)
    names = [name for name in FORMAT_NAMES if name != "fp32"]
    while True:
        units = int(rng.integers(6, 40))
        chosen = rng.choice(names, size=int(rng.integers(2, 8)), replace=False)
        landscape = synthetic_landscape(
            int(rng.integers(1_000_000, 2_000_000)),
            units,
            formats=("fp32", *(str(name) for name in chosen)),
            time_noise=0.005,
            drop_noise=float(rng.choice([0.02, 0.1])),
            root=float(rng.choice([1.0, 0.5])),
        )
        objective: Objective = "memory" if rng.uniform() < 0.25 else "latency"
        goal = Goal(objective, landscape.max_quality_drop)
        problem = Problem(landscape.space, landscape.profile, goal)
        plans = [*initial_plans(problem), *_mixed(landscape.space, int(rng.integers(0, 60)), rng)]
        yield Surrogate(landscape.space, landscape.profile, goal).fit(
            [landscape.evaluate(plan, "pretraining") for plan in plans]
        )


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
