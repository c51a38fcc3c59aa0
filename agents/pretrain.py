"""Making the policy that searches start from: trained on many workloads, none of them the user's.

The shipped one lies beside this file; its JSON says how it was made.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoprec.agents.policy_file import SHIPPED, Policy, PolicyError, export_policy, import_policy
from autoprec.agents.training_landscapes import DISTRIBUTION, SEEDS, training_world
from autoprec.envs.landscape import Landscape
from autoprec.files import write_in_one_step

ITERATIONS = 1000
KEEP_EVERY = 50
"""Iterations after which an unfinished policy is kept, and the length of a point of the curve."""
LIMIT_FACTORS = (0.1, 4.0)
AVERAGED = 0.98
"""A policy is the exponential average of its weights with this memory an iteration: one iteration sees one
workload."""
SIZING_UNITS = 48
"""Units of the workload by which batches are sized: 32 episodes, whatever the workload of an iteration."""


def pretrained_policy() -> Policy:
    """Return the policy that is shipped.

    Raises:
        PolicyError: It cannot be read.
    """
    return replace(read_policy(SHIPPED), origin="shipped")


def read_policy(path: Path) -> Policy:
    """Return the policy of a JSON file and the `.safetensors` file beside it.

    Raises:
        PolicyError: A file is missing or is not what it should be.
    """
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        weights = path.with_suffix(".safetensors").read_bytes()
    except (OSError, ValueError, RecursionError) as error:
        raise PolicyError(f"the policy {str(path)!r} cannot be read: {error}") from error
    if not isinstance(meta, dict):
        raise PolicyError(f"the policy {str(path)!r} cannot be read: it is no JSON object")
    return Policy(meta, weights, str(path))


def write_policy(path: Path, policy: Policy) -> None:
    """Write a policy as a JSON file and a `.safetensors` file beside it.

    Raises:
        PolicyError: The files cannot be written.
    """
    text = json.dumps(dict(policy.meta), indent=1) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_in_one_step(path.with_suffix(".safetensors"), policy.weights)
        write_in_one_step(path, text.encode())
    except OSError as error:
        raise PolicyError(
            f"the policy cannot be written to {str(path)!r}: {error.strerror or error}"
        ) from error


def recipe(seed: int, recorded: Sequence[Landscape]) -> dict[str, Any]:
    """Return what, with a number of iterations, a policy is made by, as JSON."""
    return {
        "seed": seed,
        "synthetic_seeds": list(SEEDS),
        "distribution": DISTRIBUTION,
        "recorded": [[landscape.name, len(landscape.trials)] for landscape in recorded],
        "limit_factors": list(LIMIT_FACTORS),
        "averaged": AVERAGED,
        "versions": {
            name: importlib.metadata.version(name) for name in ("autoprec", "ray", "torch", "numpy")
        },
    }


def pretrain(
    seed: int,
    iterations: int,
    recorded: Sequence[Landscape] = (),
    start: Policy | None = None,
    progress: Callable[[int, float], None] = lambda done, reward: None,
    keep: Callable[[Policy], None] = lambda policy: None,
) -> Policy:
    """Train a policy on a new workload in every iteration and return it.

    Args:
        seed: Fixes the workloads, the network and its training.
        iterations: How many iterations it is to have had.
        recorded: Recorded landscapes to train on beside synthetic ones.
        start: A policy of the same recipe to go on with. It holds the averaged weights: the learner goes on
            from these and not from its own, without what PPO's optimiser remembers. So a training that was
            stopped does not give the policy that it would have given at one go.
        progress: Told the iterations done and the last mean reward.
        keep: Given the policy so far every `KEEP_EVERY` iterations.

    Raises:
        PolicyError: `start` cannot be used.
    """
    from autoprec.agents.rl_trainer import Trainer
    from autoprec.envs.space import Goal
    from autoprec.envs.surrogate import Surrogate
    from autoprec.envs.synthetic import synthetic_landscape

    sizing = synthetic_landscape(seed, SIZING_UNITS)
    trainer = Trainer(
        seed, Surrogate(sizing.space, sizing.profile, Goal("latency", sizing.max_quality_drop)), LIMIT_FACTORS
    )
    done = 0
    curve: list[float] = []
    if start is not None:
        trainer.load(import_policy(start))
        done, curve = start.meta["training"]["iterations"], list(start.meta["training"]["curve"])
    average = trainer.state()
    recent: list[float] = []

    def so_far() -> Policy:
        return export_policy(average, {"iterations": done, **recipe(seed, recorded), "curve": curve})

    try:
        while done < iterations:
            world = training_world(seed, done, recorded)
            (reward,) = trainer.train(world.surrogate, 1, truth=world.truth)
            memory = min(AVERAGED, (1 + done) / (10 + done))  # the first weights are forgotten soon
            for name, value in trainer.state().items():
                average[name].lerp_(value, 1 - memory)
            done += 1
            recent.append(reward)
            progress(done, reward)
            if done % KEEP_EVERY == 0:
                curve.append(round(sum(recent) / len(recent), 4))
                recent = []
                keep(so_far())
    except KeyboardInterrupt:
        keep(so_far())
        raise
    return so_far()
