"""`autoprec bench`: record landscapes, and compare searchers on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autoprec.errors import SettingError

bench = typer.Typer(
    help="Compare searchers on recorded and synthetic landscapes.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@bench.command("record")
def bench_record(
    workload: Annotated[str, typer.Argument(help="What `autoprec tune` takes.")],
    out: Annotated[Path, typer.Option(help="The landscape's file: name.json, or name.json.gz.")],
    runs: Annotated[int, typer.Option(help="Plans to measure; a smaller space is recorded whole.")] = 400,
    objective: Annotated[str, typer.Option(help="latency, throughput or memory.")] = "latency",
    max_quality_drop: Annotated[
        str | None, typer.Option(help="Limit that the landscape will be searched under. Default: 1%.")
    ] = None,
    runtime: Annotated[str, typer.Option(help="What executes the model.")] = "eager",
    formats: Annotated[str | None, typer.Option(help="Formats to choose from, with commas.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the choice of plans.")] = 0,
    store: Annotated[str | None, typer.Option(help="URL or file of the store.")] = None,
) -> None:
    """Measure WORKLOAD at plans that cover its space; write a landscape."""
    from autoprec.console import run_record

    raise typer.Exit(
        run_record(
            workload, out, runs, store, objective=objective, max_quality_drop=max_quality_drop,
            runtime=runtime, formats=formats, seed=seed,
        )
    )  # fmt: skip


@bench.command("tune")
def bench_tune(
    landscape: Annotated[str, typer.Argument(help="A landscape file, or synthetic:SEED.")],
    searchers: Annotated[str, typer.Option(help="Names, with commas.")] = "rl,ilp,tpe",
    seeds: Annotated[int, typer.Option(help="Seeds of each searcher.")] = 1,
    runs: Annotated[int, typer.Option(help="Measured runs of all together.")] = 200,
    out: Annotated[Path, typer.Option(help="Directory of the runs and the result.")] = Path("autoprec-tune"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped search.")] = False,
    ppo: Annotated[
        list[str] | None, typer.Option(help="Setting of rl: lr=1e-3,3e-4. May be repeated.")
    ] = None,
    equal: Annotated[bool, typer.Option("--equal", help="Equal shares, not halving.")] = False,
    objective: Annotated[str, typer.Option(help="latency, throughput or memory.")] = "latency",
    limit: Annotated[float | None, typer.Option(help="Limit on the drop. Default: the landscape's.")] = None,
    workers: Annotated[int, typer.Option(help="Searchers that think at once.")] = 1,
) -> None:
    """Let searchers compete for one budget of measured runs, under Ray Tune."""
    from autoprec.bench_tune import run_bench_tune

    raise typer.Exit(
        run_bench_tune(
            landscape, searchers, seeds, runs, out, resume=resume, ppo=ppo or (), equal=equal,
            objective=objective, limit=limit, workers=workers,
        )
    )  # fmt: skip


@bench.command("searchers")
def bench_searchers(
    landscapes: Annotated[
        list[Path] | None, typer.Argument(help="Landscape files, as `bench record` writes them.")
    ] = None,
    synthetic: Annotated[int, typer.Option(help="How many synthetic landscapes to add.")] = 0,
    searchers: Annotated[str, typer.Option(help="Names with commas.")] = (
        "portfolio,rl,ilp,greedy,hillclimb,tpe,nsga2,random"
    ),
    live: Annotated[
        str | None, typer.Option(help="A workload to search by measuring it, as `autoprec tune` takes it.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Searches of each landscape; synthetic: one. Default: 20, with --live 1."),
    ] = None,
    runs: Annotated[str, typer.Option(help="Measured runs at which to judge.")] = "10,25,50,100",
    tasks: Annotated[
        str, typer.Option(help="limit (best plan within the limit), front (every limit), or both.")
    ] = "limit,front",
    objective: Annotated[str, typer.Option(help="latency, throughput or memory.")] = "latency",
    out: Annotated[Path, typer.Option(help="Directory for the figures; searches in it are kept.")] = Path(
        "autoprec-bench"
    ),
    jobs: Annotated[int, typer.Option(help="Searches at once, of those that replay.")] = 2,
    max_quality_drop: Annotated[str | None, typer.Option(help="Limit of --live. Default: 1%.")] = None,
    runtime: Annotated[str, typer.Option(help="What executes the model of --live.")] = "eager",
    formats: Annotated[str | None, typer.Option(help="Formats of --live, with commas.")] = None,
    store: Annotated[str | None, typer.Option(help="Store that keeps the runs of --live.")] = None,
) -> None:
    """Compare searchers at equal budgets of measured runs, replayed on LANDSCAPES; table, CSV and plots."""
    from autoprec.benching import Wanted
    from autoprec.console import run_compare

    if live is None and (max_quality_drop, runtime, formats, store) != (None, "eager", None, None):
        raise SettingError("--max-quality-drop, --runtime, --formats and --store go with --live WORKLOAD")
    wanted = Wanted.check(
        landscapes or [], synthetic, searchers, seeds, runs, tasks, objective, live=live is not None
    )
    raise typer.Exit(
        run_compare(
            wanted, out, jobs, live, store, objective=objective, max_quality_drop=max_quality_drop,
            runtime=runtime, formats=formats,
        )
    )  # fmt: skip
