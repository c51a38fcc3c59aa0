"""`autoprec store`: bring a store up to date, check it, move it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

store = typer.Typer(help="The store itself.", no_args_is_help=True, rich_markup_mode=None)

_Store = Annotated[
    str | None, typer.Option("--store", help="URL or file of the store. Default: $AUTOPREC_STORE, or yours.")
]


@store.command()
def upgrade(where: _Store = None) -> None:
    """Bring the schema up to date; a fresh store is created."""
    from autoprec.store_command import run_upgrade

    raise typer.Exit(run_upgrade(where))


@store.command()
def check(where: _Store = None) -> None:
    """Check that the database is sound, and count what it holds."""
    from autoprec.store_command import run_check

    raise typer.Exit(run_check(where))


@store.command("export")
def export_store(
    file: Annotated[Path, typer.Argument(help="File to write, such as store.jsonl.gz.")],
    where: _Store = None,
) -> None:
    """Write everything but tokens to one file, which SQLite and PostgreSQL stores can import."""
    from autoprec.store_command import run_export

    raise typer.Exit(run_export(file, where))


@store.command("import")
def import_store(
    file: Annotated[Path, typer.Argument(help="File that `autoprec store export` wrote.")],
    where: _Store = None,
) -> None:
    """Take in what a file holds and the store does not: all of it, or nothing."""
    from autoprec.store_command import run_import

    raise typer.Exit(run_import(file, where))
