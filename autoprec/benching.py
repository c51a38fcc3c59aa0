"""`autoprec bench searchers`: searchers at equal budgets on replayed landscapes, as table, CSV and plots."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from signal import SIG_BLOCK, SIG_SETMASK, SIGINT, pthread_sigmask

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress as Bars
from rich.table import Table
from scipy.stats import bootstrap

from autoprec.agents.comparison import (
    TASKS,
    Known,
    Replayed,
    Search,
    Task,
    best_known,
    runs_to,
    scores,
    search,
)
from autoprec.agents.searcher import SEARCHERS
from autoprec.envs.benchmark_set import SYNTHETIC, open_landscape
from autoprec.envs.replay import Replay
from autoprec.envs.space import OBJECTIVES, Objective
from autoprec.errors import SettingError, one_line
from autoprec.files import check_writable
from autoprec.report import palette
from autoprec.terminal import make_console

landscape_at = cache(open_landscape)
LIVE = "live"
SEEDS = 20
"""Seeds on each recorded landscape, where no number is given."""
_KEY = tuple[str, str, str, int, str, int]
"""Landscape, searcher, task, seed, objective and runs of a search."""


@dataclass(frozen=True)
class Wanted:
    """What is to be compared.

    Attributes:
        places: Landscape files, `synthetic:SEED` for each synthetic one, and `LIVE` for one that measures.
        searchers: Their names.
        seeds: Seeds on each landscape that is not synthetic; a synthetic one is searched once.
        budgets: Runs at which to judge; the largest is what each search gets.
        tasks: See `Search`.
        objective: What is made small.
    """

    places: tuple[str, ...]
    searchers: tuple[str, ...]
    seeds: int
    budgets: tuple[int, ...]
    tasks: tuple[Task, ...]
    objective: Objective

    @classmethod
    def check(
        cls, files: Sequence[Path], synthetic: int, searchers: str, seeds: int | None, budgets: str,
        tasks: str, objective: str, *, live: bool = False,
    ) -> Wanted:  # fmt: skip
        """Return what the options ask for.

        Raises:
            SettingError: An option cannot be used; names it, the value and what to do.
        """
        names = tuple(searchers.split(","))
        for name in names:
            if name not in SEARCHERS:
                raise SettingError(f"unknown searcher {name!r}; use one of {', '.join(SEARCHERS)}")
        numbers = budgets.split(",")
        if not all(number.isdecimal() and int(number) > 0 for number in numbers):
            raise SettingError(f"runs is {budgets!r}; give numbers above 0 with commas: 10,50,100")
        asked = [task for task in TASKS if task in tasks.split(",")]
        if len(asked) != len(tasks.split(",")):
            raise SettingError(f"tasks is {tasks!r}; use {', '.join(TASKS)}")
        if objective not in OBJECTIVES:
            raise SettingError(f"unknown objective {objective!r}; use one of {', '.join(OBJECTIVES)}")
        if seeds is None:
            seeds = 1 if live else SEEDS
        if seeds < 1 or synthetic < 0:
            raise SettingError(f"seeds is {seeds} and synthetic {synthetic}; give 1 or more, and 0 or more")
        made_up = (f"{SYNTHETIC}{seed}" for seed in range(synthetic))
        places = (*([LIVE] if live else []), *map(str, files), *made_up)
        if not places:
            raise SettingError("nothing to search: give landscape files, --synthetic 20 or --live WORKLOAD")
        return cls(
            places, names, seeds, tuple(sorted({int(n) for n in numbers})), tuple(asked), objective
        )  # fmt: skip

    def searches(self) -> Iterator[tuple[str, Task, str, int]]:
        """Yield (place, task, searcher, seed) of every search."""
        for place in self.places:
            for seed in range(1 if place.startswith(SYNTHETIC) else self.seeds):
                for task in self.tasks:
                    for name in self.searchers:
                        yield place, task, name, seed


def run_bench_searchers(wanted: Wanted, out: Path, jobs: int, live: Replayed | None = None) -> None:
    """Search, skipping what `out/searches.jsonl` already holds; write and print the figures.

    Every search is written as it ends, so a comparison that was stopped goes on where it was.

    Args:
        wanted: What to compare.
        out: Directory for everything written.
        jobs: Searches at once, of those that replay.
        live: The landscape at the place `LIVE`; searched first, one search at a time, with nothing beside.

    Raises:
        KeyboardInterrupt: The user stopped it; searches that ended are kept.
        UserError: A landscape cannot be read, or the directory not be written.
    """
    if jobs < 1:
        raise SettingError(f"jobs is {jobs}; give 1 or more")
    landscapes = {
        place: live if live is not None and place == LIVE else landscape_at(place) for place in wanted.places
    }
    plots = {task: out / f"{task}.html" for task in wanted.tasks}
    figures = out / "searchers.csv"
    try:
        out.mkdir(parents=True, exist_ok=True)
        check_writable(out / "searches.jsonl", figures, *plots.values())
        kept = out / "searches.jsonl"
        done = _read(kept)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingError(f"out is {str(out)!r}; it cannot be used: {error}") from error
    runs = wanted.budgets[-1]
    names = {place: landscape.identity for place, landscape in landscapes.items()}
    open_ = [
        key for key in wanted.searches()
        if (names[key[0]], key[2], key[1], key[3], wanted.objective, runs) not in done
    ]  # fmt: skip
    console = make_console()
    _search_all(open_, wanted, jobs, kept, done, console, landscapes)
    asked = {
        (names[place], name, task, seed, wanted.objective, runs)
        for place, task, name, seed in wanted.searches()
    }
    searches = [found for key, found in done.items() if key in asked]
    known = {
        names[place]: best_known(
            landscape, [s for s in searches if s.landscape == names[place]], wanted.objective
        )
        for place, landscape in landscapes.items()
    }
    try:
        for task, plot in plots.items():
            rows = [found for found in searches if found.task == task]
            console.print(_table(wanted, task, rows, known))
            _plot(wanted, task, rows, known).write_html(plot, include_plotlyjs=True)
        _write_csv(figures, wanted, searches, known)
    except OSError as error:
        raise SettingError(f"out is {str(out)!r}; {one_line(error)}; the searches are kept") from error
    _say_held_out(landscapes.values(), console)
    console.print(
        f"Searches: {kept}\nFigures: {figures}\nPlots: {', '.join(map(str, plots.values()))}", soft_wrap=True
    )


def _say_held_out(landscapes: Iterable[Replayed], console: Console) -> None:
    """Print how good the law is that answers for plans which were not recorded, where one does."""
    for landscape in landscapes:
        if isinstance(landscape, Replay):
            found = landscape.held_out()
            console.print(
                f"Law of {landscape.identity}, on runs that it was not fitted to: {found.runs} runs, error "
                f"of time {found.time:.1%}, of drop {found.drop:.2g} limits, rank order {found.order:.2f}",
                soft_wrap=True,
            )


def _search_all(
    keys: Sequence[tuple[str, Task, str, int]], wanted: Wanted, jobs: int, kept: Path,
    done: dict[_KEY, Search], console: Console, landscapes: Mapping[str, Replayed],
) -> None:  # fmt: skip
    """Search, in processes what replays; whatever ends it, every search that ended is written, in `done`."""
    runs = wanted.budgets[-1]
    with Bars(console=console, transient=True) as bars, kept.open("a", encoding="utf-8") as file:
        task_id = bars.add_task("searching", total=len(keys))

        def keep(found: Search) -> None:
            key = (found.landscape, found.searcher, found.task, found.seed, wanted.objective, runs)
            if key not in done:
                done[key] = found
                line = {"runs": runs, "objective": wanted.objective, **found.to_data()}
                file.write(json.dumps(line) + "\n")
                file.flush()
                bars.advance(task_id)

        replayed = [key for key in keys if key[0] != LIVE]
        for _, task, name, seed in (key for key in keys if key[0] == LIVE):
            keep(_searched(landscapes[LIVE], task, name, seed, runs, wanted.objective))
        # A fork would inherit torch's and BLAS's threads in any state.
        pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
        pending: list[Future[Search]] = []
        try:
            # Ctrl-C reaches the whole group; processes inherit that it is blocked, and end their search.
            before = pthread_sigmask(SIG_BLOCK, {SIGINT})
            try:
                pending += [pool.submit(_one, key, runs, wanted.objective) for key in replayed]
            finally:
                pthread_sigmask(SIG_SETMASK, before)
            for future in as_completed(pending):
                keep(future.result())
        finally:
            pool.shutdown(cancel_futures=True)
            for future in pending:
                if future.done() and not future.cancelled() and future.exception() is None:
                    keep(future.result())


def _one(key: tuple[str, Task, str, int], runs: int, objective: Objective) -> Search:
    place, task, name, seed = key
    return _searched(landscape_at(place), task, name, seed, runs, objective)


def _searched(
    landscape: Replayed, task: Task, name: str, seed: int, runs: int, objective: Objective
) -> Search:
    return replace(search(landscape, task, name, seed, runs, objective), landscape=landscape.identity)


def _read(file: Path) -> dict[_KEY, Search]:
    """Return the searches that a file holds; a last line that was cut short is passed over."""
    found = {}
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                data = json.loads(line)
            except ValueError:
                continue
            if not isinstance(data, dict):
                raise ValueError(f"a line of {file.name} is {data!r}, which is no search")
            runs, objective = data.pop("runs"), data.pop("objective")
            one = Search.from_data(data)
            found[(one.landscape, one.searcher, one.task, one.seed, objective, runs)] = one
    return found


def _figure(found: Search, known: Known, runs: int) -> float:
    got = scores(found, known, runs)
    return 100 * (got.area if found.task == "front" else got.regret)


def _by_landscape(rows: Sequence[Search], known: dict[str, Known], runs: int) -> NDArray[np.float64]:
    """Return the figure of each landscape, the mean over its seeds: landscapes count alike."""
    return np.array(
        [
            np.mean([_figure(found, known[name], runs) for found in rows if found.landscape == name])
            for name in dict.fromkeys(found.landscape for found in rows)
        ]
    )


def mean_interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean and its bootstrap 95% interval; of one value, that value three times."""
    mean = float(values.mean())
    if len(values) < 2 or np.ptp(values) == 0:
        return mean, mean, mean
    found = bootstrap((values,), np.mean, n_resamples=2000, method="percentile", rng=np.random.default_rng(0))
    return mean, float(found.confidence_interval.low), float(found.confidence_interval.high)


def _spread(rows: Sequence[Search], known: dict[str, Known], runs: int) -> tuple[float, float, float]:
    """Return mean and interval over landscapes; over seeds where there is one landscape."""
    values = _by_landscape(rows, known, runs)
    if len(values) == 1:
        values = np.array([_figure(found, known[found.landscape], runs) for found in rows])
    return mean_interval(values)


def _table(wanted: Wanted, task: Task, rows: Sequence[Search], known: dict[str, Known]) -> Table:
    what = {
        "front": "Hypervolume, % of the best known (more is better)",
        "limit": "Regret at the limit, % of the possible gain (less is better)",
    }[task]
    count = len({found.landscape for found in rows})
    table = Table(
        title=f"{what}: mean [95% interval] over {count} landscapes" if count > 1 else what,
        caption="runs to 95%: median, and how many searches got there; s/run: thinking for each proposed run",
    )
    table.add_column("searcher")
    for budget in wanted.budgets:
        table.add_column(f"{budget} runs", justify="right")
    table.add_column("runs to 95%", justify="right")
    table.add_column("s/run", justify="right")
    for name in wanted.searchers:
        own = [found for found in rows if found.searcher == name]
        took = [runs_to(found, known[found.landscape]) for found in own]
        # A search that never got there took longer than any that did.
        middle = float(np.median([np.inf if runs is None else runs for runs in took]))
        reached = sum(runs is not None for runs in took)
        table.add_row(
            name,
            *("{:.1f} [{:.1f}, {:.1f}]".format(*_spread(own, known, budget)) for budget in wanted.budgets),
            f"{'–' if np.isinf(middle) else f'{middle:.0f}'} ({reached}/{len(own)})",
            f"{np.mean([found.thinking for found in own]):.3f}",
        )
    return table


def _plot(wanted: Wanted, task: Task, rows: Sequence[Search], known: dict[str, Known]) -> go.Figure:
    """Return the mean figure of every searcher after each run, with its interval."""
    figure = go.Figure()
    runs = list(range(1, wanted.budgets[-1] + 1))
    for name, (colour, _) in palette.searcher_styles(wanted.searchers).items():
        own = [found for found in rows if found.searcher == name]
        spread = np.array([_spread(own, known, count) for count in runs])
        band = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
        figure.add_scatter(x=runs, y=spread[:, 2], **band, legendgroup=name)
        figure.add_scatter(
            x=runs, y=spread[:, 1], **band, legendgroup=name, fill="tonexty", fillcolor=colour, opacity=0.15
        )
        figure.add_scatter(
            x=runs, y=spread[:, 0], mode="lines", name=palette.label(name), legendgroup=name,
            line={"color": colour, "width": 2},
        )  # fmt: skip
    what = {"front": "hypervolume, % of the best known", "limit": "regret, % of the possible gain"}[task]
    figure.update_layout(
        template="plotly_white", xaxis_title="measured runs", yaxis_title=what, width=900, height=520
    )
    return figure


def _write_csv(file: Path, wanted: Wanted, searches: Sequence[Search], known: dict[str, Known]) -> None:
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        heads = [f"{what}_at_{budget}" for budget in wanted.budgets for what in ("regret", "hypervolume")]
        writer.writerow(["landscape", "task", "searcher", "seed", *heads, "runs_to_95", "thinking_s"])
        for found in sorted(searches, key=lambda s: (s.landscape, s.task, s.searcher, s.seed)):
            best = known[found.landscape]
            got = [scores(found, best, budget) for budget in wanted.budgets]
            figures = [f"{value:.5f}" for one in got for value in (one.regret, one.area)]
            writer.writerow(
                [found.landscape, found.task, found.searcher, found.seed, *figures, runs_to(found, best),
                 f"{found.thinking:.4f}"]
            )  # fmt: skip
