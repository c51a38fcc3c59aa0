"""`autoprec submit` and `autoprec jobs`: tuning on a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

jobs = typer.Typer(help="Jobs of Ray clusters.", no_args_is_help=True, rich_markup_mode=None)

StoreOption = Annotated[
    str | None,
    typer.Option(help="URL or file of the store. Default: $AUTOPREC_STORE, or yours."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(help="Dashboard of the cluster, http://head:8265. Default: a Ray on this machine."),
]
JobArgument = Annotated[str, typer.Argument(help="Id of the job.")]


def submit(
    workload: Annotated[
        str, typer.Argument(help="path/to/file.py:name, package.module:name, or a ready-made name.")
    ],
    address: AddressOption = None,
    store: StoreOption = None,
    objective: Annotated[str, typer.Option(help="latency, throughput or memory.")] = "latency",
    max_quality_drop: Annotated[
        str | None, typer.Option(help="0.005, or 1% of the baseline's quality. Left out: the whole front.")
    ] = None,
    max_memory: Annotated[str | None, typer.Option(help="Limit on weights: 80MB, or 40% of now.")] = None,
    budget: Annotated[str | None, typer.Option(help="Measured runs (200) or wall time (90s, 20m).")] = None,
    runtime: Annotated[str, typer.Option(help="eager, compile, onnxruntime, openvino, or all.")] = "eager",
    searcher: Annotated[str, typer.Option(help="Who proposes plans.")] = "portfolio",
    formats: Annotated[str | None, typer.Option(help="Formats to choose from, with commas.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the searchers.")] = 0,
    group: Annotated[
        list[str] | None, typer.Option(help="Regular expression: its modules share one decision.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Regular expression: its modules stay as they came.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Use nothing that other jobs measured.")] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="Measure on GPUs instead of CPUs.")] = False,
    device: Annotated[str | None, typer.Option(help="Part of the name of the device to measure on.")] = None,
    stations: Annotated[int | None, typer.Option(help="Most devices to use at once.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of a CPU station. Default: all.")] = None,
    run_seconds: Annotated[float, typer.Option(help="Longest that one measured run may take.")] = 600.0,
    working_dir: Annotated[
        Path | None, typer.Option(help="Directory that travels. Default: that of the workload's file.")
    ] = None,
    python: Annotated[str | None, typer.Option(help="The interpreter on the cluster.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: of two jobs with one key only the first is made.")
    ] = None,
) -> None:
    """Submit a job that tunes WORKLOAD on a Ray cluster; it goes on when this machine is gone."""
    from autoprec.cluster_command import run_submit

    raise typer.Exit(
        run_submit(
            workload,
            address=address,
            store=store,
            idempotency_key=key,
            working_dir=working_dir,
            gpu=gpu,
            threads=threads,
            stations=stations,
            device=device,
            run_seconds=run_seconds,
            python=python,
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


@jobs.command("list")
def jobs_list(
    store: StoreOption = None,
    state: Annotated[
        str | None, typer.Option(help="queued, running, interrupted, failed or finished.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Most jobs, the newest first.")] = 20,
) -> None:
    """List the jobs of the store."""
    from autoprec.cluster_command import run_list

    raise typer.Exit(run_list(store, state, limit))


@jobs.command("show")
def jobs_show(job: JobArgument, store: StoreOption = None) -> None:
    """Show one job: who asked for what, where it stands, what it found."""
    from autoprec.cluster_command import run_show

    raise typer.Exit(run_show(job, store))


@jobs.command("logs")
def jobs_logs(
    job: JobArgument,
    store: StoreOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
) -> None:
    """Print what a job's driver printed."""
    from autoprec.cluster_command import run_logs

    raise typer.Exit(run_logs(job, store, follow=follow))


@jobs.command("stop")
def jobs_stop(job: JobArgument, store: StoreOption = None) -> None:
    """Stop a job; what was measured is kept, and it can be resumed."""
    from autoprec.cluster_command import run_stop

    raise typer.Exit(run_stop(job, store))


@jobs.command("resume")
def jobs_resume(job: JobArgument, address: AddressOption = None, store: StoreOption = None) -> None:
    """Go on with a job that was stopped, failed or died."""
    from autoprec.cluster_command import run_resume

    raise typer.Exit(run_resume(job, address, store))
