"""The command `autoprec profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

profile = typer.Typer(
    help="Device profiles: what layers take on devices that need not be here.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Store = Annotated[str | None, typer.Option(help="URL or file of the store.")]


@profile.command("import")
def import_profile(
    file: Annotated[
        Path, typer.Argument(help="device-profile.json, as benchmarks/kernels/run.py writes it.")
    ],
    store: _Store = None,
) -> None:
    """Put a device profile in the store."""
    from autoprec.profile_command import run_import

    raise typer.Exit(run_import(file, store))


@profile.command("list")
def list_profiles(store: _Store = None) -> None:
    """List the device profiles of the store, the newest first."""
    from autoprec.profile_command import run_list

    raise typer.Exit(run_list(store))
