"""`autoprec plans`: what the store holds, and the life cycle of plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

plans = typer.Typer(help="Ask the store for plans.", no_args_is_help=True, rich_markup_mode=None)

_Store = Annotated[
    str | None, typer.Option(help="URL or file of the store. Default: $AUTOPREC_STORE, or yours.")
]
_Plan = Annotated[int, typer.Argument(help="Number of the plan.")]
_Note = Annotated[str, typer.Option(help="Why, for the audit trail.")]


@plans.command("best")
def plans_best(
    workload: Annotated[
        str,
        typer.Argument(
            help="path/to/file.py:name, package.module:name, a ready-made name, or a fingerprint."
        ),
    ],
    objective: Annotated[str, typer.Option(help="latency, throughput or memory.")] = "latency",
    max_quality_drop: Annotated[
        str | None, typer.Option(help="0.005; with --predict also 1% of the baseline's quality.")
    ] = None,
    max_memory: Annotated[str | None, typer.Option(help="Limit on weights: 80MB, or 40% of now.")] = None,
    runtime: Annotated[str, typer.Option(help="eager, compile, onnxruntime, openvino, or any.")] = "any",
    device: Annotated[
        str | None, typer.Option(help="Name of the device it was measured on. Default: this one.")
    ] = None,
    predict: Annotated[
        bool, typer.Option("--predict", help="The best plan expected, from the measured runs of others.")
    ] = False,
    store: _Store = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file.")] = None,
) -> None:
    """Show the best plan that was measured for WORKLOAD, or with --predict the best that is expected."""
    from autoprec.asking import run_best

    raise typer.Exit(
        run_best(
            workload,
            objective,
            max_quality_drop,
            max_memory,
            runtime,
            store,
            out,
            predict=predict,
            device=device,
        )
    )


@plans.command("list")
def plans_list(
    workload: Annotated[str | None, typer.Option(help="Reference of the workload.")] = None,
    device: Annotated[str | None, typer.Option(help="Name of the device.")] = None,
    runtime: Annotated[str | None, typer.Option(help="What executes them.")] = None,
    state: Annotated[str | None, typer.Option(help="candidate, verified, deployed or retired.")] = None,
    job: Annotated[str | None, typer.Option(help="Id of the job.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most plans, the newest first.")] = 50,
    store: _Store = None,
) -> None:
    """List plans, the newest first."""
    from autoprec.plans_command import run_list

    raise typer.Exit(run_list(store, workload, device, runtime, state, job, limit))


@plans.command("show")
def plans_show(plan: _Plan, store: _Store = None) -> None:
    """Show a plan: its evidence, its units, and how it came to its state."""
    from autoprec.plans_command import run_show

    raise typer.Exit(run_show(plan, store))


@plans.command("export")
def plans_export(
    plan: _Plan,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("plan.json"),
    store: _Store = None,
) -> None:
    """Write a plan to a file, as trainers load it."""
    from autoprec.plans_command import run_export

    raise typer.Exit(run_export(plan, out, store))


@plans.command("diff")
def plans_diff(
    first: _Plan,
    second: Annotated[int, typer.Argument(help="Number of the other plan.")],
    store: _Store = None,
) -> None:
    """Show the units that two plans run differently."""
    from autoprec.plans_command import run_diff

    raise typer.Exit(run_diff(first, second, store))


@plans.command("promote")
def plans_promote(
    plan: _Plan,
    to: Annotated[str | None, typer.Option(help="verified or deployed. Default: the next one.")] = None,
    note: _Note = "",
    store: _Store = None,
) -> None:
    """Move a plan on: candidate, verified, deployed. Of one model on one device one plan is deployed."""
    from autoprec.plans_command import run_promote

    raise typer.Exit(run_promote(plan, to, note, store))


@plans.command("retire")
def plans_retire(plan: _Plan, note: _Note = "", store: _Store = None) -> None:
    """Take a plan out of use: no query gives it as the best any more."""
    from autoprec.plans_command import run_retire

    raise typer.Exit(run_retire(plan, note, store))
