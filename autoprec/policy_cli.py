"""The command `autoprec policy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

policy = typer.Typer(
    help="Policies: what the searcher rl has learnt before it sees a model.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Store = Annotated[str | None, typer.Option(help="URL or file of the store.")]


@policy.command()
def train(
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of PPO, one workload in each.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of workloads, network and training.")] = 0,
    landscapes: Annotated[
        list[Path] | None, typer.Option(help="A recorded landscape to train on too; may be given again.")
    ] = None,
    store: _Store = None,
    name: Annotated[
        str, typer.Option(help="Name in the store; jobs start from the newest `default`.")
    ] = "default",
    out: Annotated[
        Path | None, typer.Option(help="Write policy.json and policy.safetensors here, not to the store.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished training.")] = False,
) -> None:
    """Train a policy on synthetic workloads (and recorded ones); takes some minutes."""
    from autoprec.policy_command import run_train

    raise typer.Exit(run_train(iterations, seed, landscapes or [], store, name, out, resume=resume))


@policy.command("list")
def list_policies(store: _Store = None) -> None:
    """List the policies of the store and the shipped one; * marks the one that jobs start from."""
    from autoprec.policy_command import run_list

    raise typer.Exit(run_list(store))


@policy.command()
def show(
    policy_id: Annotated[str, typer.Argument(metavar="ID", help="Of `policy list`, or: shipped.")],
    store: _Store = None,
) -> None:
    """Show how a policy was made. Exit code 1 where this version cannot use it."""
    from autoprec.policy_command import run_show

    raise typer.Exit(run_show(policy_id, store))
