"""The command line. Heavy imports happen inside the commands, so that `--help` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autoprec.bench_cli import bench
from autoprec.cluster_cli import jobs, submit
from autoprec.plans_cli import plans
from autoprec.policy_cli import policy
from autoprec.profile_cli import profile
from autoprec.serve_cli import serve
from autoprec.store_cli import store as store_app
from autoprec.tokens_cli import tokens

app = typer.Typer(
    help="Find the numeric format that each layer of a PyTorch model should run in, by measuring it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)

WORKLOAD_HELP = "path/to/file.py:name, package.module:name, or a ready-made name (`autoprec workloads`)."


@app.command()
def tune(
    workload: Annotated[str, typer.Argument(help=WORKLOAD_HELP)],
    objective: Annotated[
        str, typer.Option(help="What to make small: latency, throughput (time of a run) or memory.")
    ] = "latency",
    max_quality_drop: Annotated[
        str | None, typer.Option(help="0.005, or 1% of the baseline's quality. Left out: the whole front.")
    ] = None,
    max_memory: Annotated[str | None, typer.Option(help="Limit on weights: 80MB, or 40% of now.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Measured runs (200; profiling and winners come on top) or wall time of all (90s, 20m). "
            "Default: by model size."
        ),
    ] = None,
    runtime: Annotated[
        str,
        typer.Option(
            help="What executes the model: eager, compile, onnxruntime, openvino, or all to compare."
        ),
    ] = "eager",
    searcher: Annotated[
        str,
        typer.Option(help="portfolio, rl, ilp, greedy, hillclimb, tpe, nsga2 or random."),
    ] = "portfolio",
    formats: Annotated[
        str | None, typer.Option(help="Formats to choose from, with commas. Default: all native ones.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the searchers.")] = 0,
    group: Annotated[
        list[str] | None, typer.Option(help="Regular expression: its modules share one decision.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Regular expression: its modules stay as they came.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="URL or file of the store. Default: $AUTOPREC_STORE or your data directory."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for plan.json and report.html.")] = Path(
        "autoprec-out"
    ),
    fresh: Annotated[bool, typer.Option("--fresh", help="Use nothing that other jobs measured.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished job.")] = False,
) -> None:
    """Tune WORKLOAD on this machine; write plan.json and report.html."""
    from autoprec.console import run_tune

    raise typer.Exit(
        run_tune(
            workload,
            out=out,
            store=store,
            resume=resume,
            objective=objective,
            max_quality_drop=max_quality_drop,
            max_memory=max_memory,
            budget=budget,
            runtime=runtime,
            searcher=searcher,
            formats=formats,
            seed=seed,
            groups=tuple(group or ()),
            exclude=tuple(exclude or ()),
            fresh=fresh,
        )
    )


@app.command()
def check(
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    workload: Annotated[str, typer.Argument(help=WORKLOAD_HELP)],
) -> None:
    """Measure PLAN again, fresh, on this machine. Exit code 1 where its claim does not hold here."""
    from autoprec.console import run_check

    raise typer.Exit(run_check(plan, workload))


app.add_typer(plans, name="plans")
app.add_typer(bench, name="bench")
app.add_typer(policy, name="policy")
app.add_typer(profile, name="profile")
app.add_typer(jobs, name="jobs")
app.add_typer(store_app, name="store")
app.add_typer(tokens, name="tokens")
app.command()(submit)
app.command()(serve)


@app.command()
def doctor() -> None:
    """Show what this machine can do: each format, operation and runtime, native or refused, and why."""
    from autoprec.doctor import print_doctor

    print_doctor()


@app.command()
def workloads() -> None:
    """List the ready-made workloads."""
    from autoprec.finding import ready_made

    for name, place in sorted(ready_made().items()):
        typer.echo(f"{name:20} {place}")


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        from autoprec import __version__

        typer.echo(__version__)
        raise typer.Exit
