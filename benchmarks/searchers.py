"""Compare the searchers at equal budgets on a recorded landscape, or on synthetic ones.

    python -m benchmarks.searchers                              the recorded landscape of the small CNN
    python -m benchmarks.searchers landscape.json.gz --seeds 20
    python -m benchmarks.searchers --synthetic 5 --out results.csv

Budgets are shares of a complete landscape's plans and include the first plans that every search measures.
Regret is the share of the possible gain (from the baseline to the landscape's best plan) that was missed.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from autoprec.agents.evaluate import regret, run_search, runs_to_gain
from autoprec.agents.searcher import SEARCHERS, Problem, make_searcher
from autoprec.agents.warm_start import initial_plans
from autoprec.envs.landscape import Landscape, LandscapeError
from autoprec.envs.space import OBJECTIVES, Goal
from autoprec.envs.synthetic import synthetic_landscape

SHARES = (0.05, 0.1, 0.2)
RECORDED = Path(__file__).parent.parent / "tests" / "assets" / "mnist_cnn_landscape.json.gz"


@dataclass(frozen=True)
class Outcome:
    """One search.

    Attributes:
        searcher: Its name.
        seed: Its seed.
        regrets: Regret at each budget.
        runs_to_95: Runs until 95% of the possible gain, or `None`.
        thinking: Seconds the searcher spent for each run that it proposed.
    """

    searcher: str
    seed: int
    regrets: tuple[float, ...]
    runs_to_95: int | None
    thinking: float


def search(landscape: Landscape, goal: Goal, name: str, seed: int, budgets: list[int]) -> Outcome:
    """Run one searcher for the largest budget and judge it at each."""
    optimum = landscape.optimum(goal)
    if optimum is None:
        raise SystemExit(
            f"no plan of {landscape.name} keeps a drop of {goal.max_quality_drop}: raise --limit"
        )
    problem = Problem(landscape.space, landscape.profile, goal)
    start = float(landscape.profile.baseline_bytes) if goal.objective == "memory" else 1.0
    searcher = make_searcher(name, problem, seed)
    began = time.perf_counter()
    trials = run_search(searcher, landscape.evaluate, budgets[-1], initial=initial_plans(problem))
    spent = time.perf_counter() - began
    searcher.close()
    proposed = max(1, len(trials) - len(initial_plans(problem)))
    return Outcome(
        name,
        seed,
        tuple(regret(trials[:budget], goal, optimum, start) for budget in budgets),
        runs_to_gain(trials, goal, optimum, 0.95, start),
        spent / proposed,
    )


def bootstrap(values: NDArray[np.float64], draws: int = 10_000) -> tuple[float, float, float]:
    """Return the mean and its bootstrap 95% interval over seeds."""
    rng = np.random.default_rng(0)
    means = rng.choice(values, (draws, len(values))).mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(values.mean()), float(low), float(high)


def show(outcomes: list[Outcome], budgets: list[int], title: str) -> None:
    """Print regrets, and the portfolio's distance to the best single searcher at each budget."""
    table = Table(title=f"Regret in %, {title}", caption="s/run: seconds of thinking for each proposed run")
    table.add_column("searcher")
    for budget in budgets:
        table.add_column(f"at {budget} runs", justify="right")
    table.add_column("runs to 95%", justify="right")
    table.add_column("s/run", justify="right")
    names = list(dict.fromkeys(outcome.searcher for outcome in outcomes))
    regrets = {n: np.array([o.regrets for o in outcomes if o.searcher == n]) for n in names}
    for name in names:
        own = [outcome for outcome in outcomes if outcome.searcher == name]
        reached = [o.runs_to_95 for o in own if o.runs_to_95 is not None]
        median = f"{np.median(reached):.0f}" if reached else "–"
        table.add_row(
            name,
            *(_interval(*bootstrap(regrets[name][:, column])) for column in range(len(budgets))),
            f"{median} ({len(reached)}/{len(own)})",
            f"{np.mean([o.thinking for o in own]):.3f}",
        )
    console = Console()
    console.print(table)
    singles = [name for name in names if name != "portfolio"]
    if "portfolio" in names and singles:
        for column, budget in enumerate(budgets):
            best = min(singles, key=lambda n: float(regrets[n][:, column].mean()))
            gap = regrets["portfolio"][:, column] - regrets[best][:, column]
            console.print(
                f"portfolio minus best single ({best}) at {budget} runs: {_interval(*bootstrap(gap))}"
            )


def _interval(mean: float, low: float, high: float) -> str:
    return f"{100 * mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def main(arguments: Sequence[str] = ()) -> None:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("landscape", type=Path, nargs="?", help="a complete landscape file")
    parser.add_argument("--synthetic", type=int, metavar="UNITS", help="a synthetic landscape for each seed")
    parser.add_argument("--searchers", default=",".join(SEARCHERS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--objective", choices=OBJECTIVES, default="latency")
    parser.add_argument("--limit", type=float, help="limit on the drop; by default the landscape's own")
    parser.add_argument("--out", type=Path, help="also write every search to this CSV file")
    options = parser.parse_args(arguments)
    if options.landscape is not None and options.synthetic is not None:
        parser.error("give a landscape file or --synthetic UNITS, not both")
    try:
        fixed = None if options.synthetic else Landscape.load(options.landscape or RECORDED)
    except LandscapeError as error:
        parser.error(str(error))
    if fixed is not None and not fixed.complete:
        parser.error(f"{options.landscape} is not complete, and regret needs the best of all plans")

    outcomes: list[Outcome] = []
    budgets: list[int] = []
    for seed in range(options.seeds):
        landscape = fixed or synthetic_landscape(
            seed, options.synthetic, formats=("fp32", "bf16", "int8_dynamic_row", "int8_weight_only"),
            time_noise=0.01, drop_noise=0.05,
        ).record()  # fmt: skip
        limit = landscape.max_quality_drop if options.limit is None else options.limit
        budgets = [max(1, round(share * len(landscape.trials))) for share in SHARES]
        for name in options.searchers.split(","):
            outcomes.append(search(landscape, Goal(options.objective, limit), name, seed, budgets))
        print(f"seed {seed + 1} of {options.seeds}", file=sys.stderr)
    title = fixed.name if fixed else f"synthetic, {options.synthetic} units, one landscape a seed"
    show(outcomes, budgets, f"{title}: mean [95% interval] over {options.seeds} seeds")
    if options.out:
        with options.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(
                ["searcher", "seed", *(f"regret_{b}" for b in budgets), "runs_to_95", "thinking_s"]
            )
            for o in outcomes:
                writer.writerow([o.searcher, o.seed, *o.regrets, o.runs_to_95, o.thinking])


if __name__ == "__main__":
    main(sys.argv[1:])
