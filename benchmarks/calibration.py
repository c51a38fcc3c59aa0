"""How often the surrogate's 90% intervals hold measured runs that it was not fitted to.

    python -m benchmarks.calibration [landscape.json.gz ...] [--synthetic 10]

For each landscape and number of runs, the surrogate is fitted to that many recorded runs, drawn at random or
(`cheap`) those that the profile expects to be fastest after the first plans of a search, and predicts the
others.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from autoprec.agents.coverage import CoverageSearcher
from autoprec.agents.evaluate import run_search
from autoprec.agents.searcher import Problem
from autoprec.agents.warm_start import initial_plans
from autoprec.envs.benchmark_set import benchmark_landscape
from autoprec.envs.landscape import Landscape
from autoprec.envs.space import Goal, Trial
from autoprec.envs.surrogate import Surrogate
from benchmarks.common import save, table

RECORDED = (
    Path("tests/assets/mnist_cnn_landscape.json.gz"),
    *sorted((Path(__file__).parent / "landscapes").glob("*.json.gz")),
)
RUNS = (12, 25, 50, 100)
SEEDS = 4
HELD_OUT = 400
SYNTHETIC_RUNS = 160
COVERAGE = 0.9


def main() -> None:
    """Measure and print the coverage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("landscapes", type=Path, nargs="*", default=RECORDED)
    parser.add_argument("--synthetic", type=int, default=10)
    options = parser.parse_args()
    sources = [Landscape.load(path) for path in options.landscapes]
    sources += [_recorded(seed) for seed in range(options.synthetic)]
    rows = [
        {"landscape": source.name, "runs": runs, "fitted to": kind, **found}
        for source, runs, kind in itertools.product(sources, RUNS, ("random", "cheap"))
        if (found := coverage(source, runs, kind))
    ]
    table("Coverage of 90% intervals on held-out runs", rows)
    save("calibration", rows)


def _recorded(seed: int) -> Landscape:
    """Record a synthetic landscape at plans that cover it."""
    source = benchmark_landscape(seed)
    problem = Problem(source.space, source.profile, Goal("latency", source.max_quality_drop, True))
    searcher = CoverageSearcher(problem, 0, SYNTHETIC_RUNS)
    trials = run_search(searcher, source.evaluate, SYNTHETIC_RUNS, initial=initial_plans(problem))
    return Landscape(source.name, source.space, source.profile, tuple(trials), False, source.max_quality_drop)


def coverage(source: Landscape, runs: int, kind: str) -> dict[str, Any]:
    """Return the mean over seeds of how often intervals hold held-out runs, and how wide they are."""
    found = []
    for seed in range(SEEDS):
        fitted, others = _split(source, runs, kind, seed)
        if len(others) < 20:
            return {}
        goal = Goal("latency", source.max_quality_drop, whole_front=True)
        surrogate = Surrogate(source.space, source.profile, goal).fit(fitted)
        expected = surrogate.predict(np.array([trial.assignment for trial in others], np.intp))
        time = np.array([trial.time for trial in others])
        drop = np.array([trial.drop for trial in others])
        most = float(ndtri((1 + COVERAGE) / 2))
        held = [
            np.abs(time - expected.time_mean) < most * expected.time_std,
            np.abs(drop - expected.drop_mean) < most * expected.drop_std,
        ]
        width = np.median(expected.drop_std) / max(source.max_quality_drop, 1e-12)
        found.append([held[0].mean(), held[1].mean(), np.median(expected.time_std / time), width])
    means = np.mean(found, axis=0)
    return {
        "time held": f"{means[0]:.0%}",
        "drop held": f"{means[1]:.0%}",
        "std of time": f"{means[2]:.1%}",
        "std of drop, limits": f"{means[3]:.3f}",
    }


def _split(source: Landscape, runs: int, kind: str, seed: int) -> tuple[list[Trial], list[Trial]]:
    rng = np.random.default_rng(seed)
    good = [trial for trial in source.trials if trial.ok]
    rng.shuffle(good)  # type: ignore[arg-type]  # a list of trials shuffles as well
    if kind == "cheap":
        rows = np.arange(len(source.space.units))
        problem = Problem(source.space, source.profile, Goal("latency", source.max_quality_drop))
        first = set(initial_plans(problem))

        def order(trial: Trial) -> tuple[bool, float]:
            expected = float(np.nansum(source.profile.time[rows, list(trial.assignment)]))
            return trial.assignment not in first, expected + 0.1 * rng.normal()

        good.sort(key=order)
    return good[:runs], good[runs : runs + HELD_OUT]


if __name__ == "__main__":
    main()
