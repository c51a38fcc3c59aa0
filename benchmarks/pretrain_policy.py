"""Make the shipped policy anew: `python -m benchmarks.pretrain_policy [iterations]`, some minutes."""

from __future__ import annotations

import sys

from autoprec.agents.pretrain import pretrain, save_pretrained

iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 450
recent: list[float] = []


def progress(done: int, reward: float) -> None:
    """Print the mean reward of the last 50 iterations."""
    recent.append(reward)
    if done % 50 == 0:
        print(f"{done:5d} iterations, mean reward {sum(recent[-50:]) / 50:+.3f}", flush=True)


save_pretrained(*pretrain(0, iterations, progress))
