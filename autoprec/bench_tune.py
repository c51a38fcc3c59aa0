"""`autoprec bench tune`: searchers compete for one budget of measured runs on a landscape, under Ray Tune."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autoprec.agents.ppo_settings import PPOSettings
from autoprec.agents.ray_tune import Candidate, Outcome, TunedAgents, tune_agents
from autoprec.agents.searcher import Problem
from autoprec.envs.benchmark_set import open_landscape
from autoprec.envs.space import OBJECTIVES, Goal, Objective
from autoprec.errors import SettingError, one_line
from autoprec.files import check_writable, write_in_one_step
from autoprec.terminal import INTERRUPTED, make_console

RESULT = "result.json"
ENDED = {
    "halved": "scheduler: others were better",
    "share used": "its share of the budget",
    "budget spent": "the budget",
    "nothing left": "itself: nothing left to try",
}


def run_bench_tune(
    landscape: str,
    searchers: str,
    seeds: int,
    runs: int,
    out: Path,
    *,
    resume: bool = False,
    ppo: Sequence[str] = (),
    equal: bool = False,
    objective: str = "latency",
    limit: float | None = None,
    workers: int = 1,
) -> int:
    """Let searchers compete and print a table of them; return the exit code.

    Args:
        landscape: A landscape file, or `synthetic:SEED`.
        searchers: Their names, with commas.
        seeds: Each searcher takes part with the seeds 0 to `seeds - 1`.
        runs: Measured runs of all together.
        out: Directory of the journal (`runs.jsonl`), Tune's files and `result.json`.
        resume: Go on with a search that was stopped.
        ppo: Settings of `rl`, such as `lr=1e-3,3e-4`: every combination takes part.
        equal: Give all equal shares, instead of what is left to the winners.
        objective: What to make small.
        limit: Limit on the drop; by default the landscape's own.
        workers: How many searchers think at once.

    Raises:
        UserError: Something given cannot be used.
    """
    console = make_console()
    if objective not in OBJECTIVES:
        raise SettingError(f"unknown objective {objective!r}; use one of {', '.join(OBJECTIVES)}")
    for name, value in (("seeds", seeds), ("runs", runs), ("workers", workers)):
        if value < 1:
            raise SettingError(f"{name} is {value}; it must be at least 1")
    source = open_landscape(landscape)
    kind: Objective = objective
    goal = Goal(kind, source.max_quality_drop if limit is None else limit)
    problem = Problem(source.space, source.profile, goal)
    if out.is_dir():
        check_writable(out / RESULT)
    try:
        tuned = tune_agents(
            problem,
            source.evaluate,
            make_candidates(searchers, seeds, ppo),
            runs,
            folder=out,
            source=source.identity,
            resume=resume,
            halve=not equal,
            workers=workers,
            on_report=lambda name, count, gain: console.print(f"{name}: {count} runs, saves {gain:.1%}"),
        )
    except KeyboardInterrupt:
        console.print("\nStopped. Every finished run is kept. To go on, add --resume to the same command.")
        return INTERRUPTED
    show(console, problem, tuned, f"{source.name}, {len(tuned.runs)} of {runs} measured runs")
    path = out / RESULT
    try:
        write_in_one_step(path, (json.dumps(result_data(problem, tuned), indent=2) + "\n").encode())
    except OSError as error:
        raise SettingError(f"cannot write {str(path)!r}: {one_line(error)}; the runs are kept") from error
    console.print(f"Result: {path}", soft_wrap=True)
    return 0 if tuned.outcomes[0].best is not None else 1


def make_candidates(searchers: str, seeds: int, ppo: Sequence[str]) -> list[Candidate]:
    """Return every searcher with every seed, `rl` also with every combination of PPO settings.

    Raises:
        SettingError: A name or a value cannot be used, or PPO settings are given without `rl`.
    """
    names = [name.strip() for name in searchers.split(",")]
    options: dict[str, list[str]] = {}
    for text in ppo:
        key, equals, values = text.partition("=")
        if not equals or not values or key in options:
            raise SettingError(f"ppo is {text!r}; write a setting once, as name=value or name=value,value")
        options[key] = values.split(",")
    if options and "rl" not in names:
        raise SettingError(f"ppo is {ppo[0]!r}, but searchers is {searchers!r}; only 'rl' takes PPO settings")
    grid = [
        PPOSettings.parse(dict(zip(options, values, strict=True)))
        for values in itertools.product(*options.values())
    ]
    return [
        Candidate(name, seed, settings)
        for name in names
        for settings in (grid if name == "rl" else [PPOSettings()])
        for seed in range(seeds)
    ]


def result_data(problem: Problem, tuned: TunedAgents) -> list[dict[str, object]]:
    """Return what a Tune run found as JSON data, the best candidate first."""
    return [
        {
            "searcher": outcome.candidate.searcher,
            "seed": outcome.candidate.seed,
            "ppo": asdict(outcome.candidate.ppo) if outcome.candidate.searcher == "rl" else None,
            "runs": len(outcome.trials),
            "measured_for_it": outcome.paid,
            "gain": outcome.gain,
            "best_cost": None if outcome.best is None else outcome.best.cost(problem.goal),
            "best_drop": None if outcome.best is None else outcome.best.drop,
            "ended": outcome.ended,
        }
        for outcome in tuned.outcomes
    ]


def show(console: Console, problem: Problem, tuned: TunedAgents, title: str) -> None:
    """Print the candidates, the best first."""
    memory = problem.goal.objective == "memory"
    table = Table(title=title, title_justify="left")
    for name in ("trial", "runs", "of them measured for it", "best cost", "drop", "saves", "stopped by"):
        table.add_column(name, justify="left" if name in ("trial", "stopped by") else "right")
    for outcome in tuned.outcomes:
        table.add_row(
            outcome.candidate.name,
            str(len(outcome.trials)),
            str(outcome.paid),
            *_best(outcome, problem, memory=memory),
            f"{outcome.gain:.1%}",
            ENDED[outcome.ended],
        )
    console.print(table)


def _best(outcome: Outcome, problem: Problem, *, memory: bool) -> tuple[str, str]:
    if outcome.best is None:
        return "none within the limit", ""
    cost = outcome.best.cost(problem.goal)
    return (f"{cost / 1e6:.3g} MB" if memory else f"{cost:.4f}"), f"{outcome.best.drop:.4g}"
