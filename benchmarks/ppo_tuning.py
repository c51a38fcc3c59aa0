"""Compare settings of the `rl` searcher's PPO at equal numbers of measured runs, under Ray Tune.

    python -m benchmarks.ppo_tuning out/ [--landscapes 8]     goes on where it was stopped

Each setting differs from the defaults in one thing. Landscapes are the recorded one of the small CNN and
synthetic ones with other seeds than the shipped policy was trained on; each is searched with its own seed. A
setting is judged by the difference of what it saves to what the defaults save on the same landscape, in
percentage points of the baseline's time.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from autoprec.agents.evaluate import gain
from autoprec.agents.ppo_settings import PPOSettings
from autoprec.agents.ray_tune import Candidate, tune_agents
from autoprec.agents.searcher import Problem
from autoprec.agents.warm_start import initial_plans
from autoprec.benching import mean_interval
from autoprec.envs.benchmark_set import open_landscape
from autoprec.envs.space import Goal
from benchmarks.common import save

LANDSCAPES = (
    "tests/assets/mnist_cnn_landscape.json.gz",
    *(f"synthetic:{70_000 + number}" for number in range(8)),
)
SETTINGS = (
    PPOSettings(),
    PPOSettings(lr=3e-4),
    PPOSettings(lr=3e-3),
    PPOSettings(entropy=0.01),
    PPOSettings(epochs=6),
    PPOSettings(first_iterations=0, iterations=0),
    PPOSettings(first_iterations=8, iterations=3),
)
OWN = 24
"""Runs that each setting asks for beyond the first plans: six proposals."""
JUDGED = (12, 24)


def compare(name: str, seed: int, folder: Path) -> list[list[float]]:
    """Return what each setting saves on a landscape, `[setting][number of own runs]`."""
    landscape = open_landscape(name)
    problem = Problem(landscape.space, landscape.profile, Goal("latency", landscape.max_quality_drop))
    first = len(initial_plans(problem))
    tuned = tune_agents(
        problem,
        landscape.evaluate,
        [Candidate("rl", seed, settings) for settings in SETTINGS],
        first + OWN * len(SETTINGS),
        folder=folder,
        resume=True,
        halve=False,
    )
    given = {outcome.candidate.ppo: outcome.trials for outcome in tuned.outcomes}
    return [[gain(problem, given[s][: first + own]) for own in JUDGED] for s in SETTINGS]


def main() -> None:
    """Compare on each landscape, and write the figures after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="takes the measured runs; give it again to go on")
    parser.add_argument("--landscapes", type=int, default=len(LANDSCAPES))
    options = parser.parse_args()
    names: list[str] = []
    gains: list[list[list[float]]] = []
    for seed, name in enumerate(LANDSCAPES[: options.landscapes]):
        began = time.perf_counter()
        gains.append(compare(name, seed, options.folder / f"landscape{seed}"))
        names.append(Path(name).name)
        write(names, gains)
        print(f"{names[-1]}: {time.perf_counter() - began:.0f} s", file=sys.stderr)


def write(names: list[str], gains: list[list[list[float]]]) -> None:
    """Write what is known, and print each setting's mean difference to the defaults."""
    table = 100 * np.array(gains)  # [landscape, setting, number of own runs]
    rows = []
    for index, settings in enumerate(SETTINGS):
        row: dict[str, object] = {"settings": asdict(settings), "changes": settings.changes()}
        for column, own in enumerate(JUDGED):
            row[f"saves_at_{own}"] = [round(value, 3) for value in table[:, index, column].tolist()]
            if index:
                mean, low, high = mean_interval(table[:, index, column] - table[:, 0, column])
                row[f"minus_defaults_at_{own}"] = [round(value, 3) for value in (mean, low, high)]
                print(f"{settings.changes()} at {own}: {mean:+.2f} [{low:+.2f}, {high:+.2f}] points")
        rows.append(row)
    result = {
        "command": "python -m benchmarks.ppo_tuning FOLDER",
        "unit": "points (%) of the baseline's time; differences: mean and bootstrap 95% interval",
        "own_runs": OWN,
        "landscapes": names,
        "seeds": list(range(len(names))),
        "settings": rows,
    }
    save("ppo-tuning", result)


if __name__ == "__main__":
    main()
