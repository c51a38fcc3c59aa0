"""What `autoprec store` does and prints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from autoprec.store.store import Store
from autoprec.terminal import make_console


def run_upgrade(where: str | None) -> int:
    """Bring the schema up to date; return the exit code."""
    with Store.open(where) as store:
        make_console().print(f"{store.location} is up to date (schema {store.revision})", soft_wrap=True)
    return 0


def run_check(where: str | None) -> int:
    """Check the database; return the exit code."""
    with Store.open(where, upgrade=False) as store:
        _print(store.check(), "rows")
        make_console().print(f"{store.location} is sound (schema {store.revision})", soft_wrap=True)
    return 0


def run_export(file: Path, where: str | None) -> int:
    """Write a store to a file; return the exit code."""
    with Store.open(where) as store:
        _print(store.export_to(file), "rows written")
    make_console().print(f"Wrote {file}", soft_wrap=True)
    return 0


def run_import(file: Path, where: str | None) -> int:
    """Take in what a file holds; return the exit code."""
    with Store.open(where) as store:
        _print(store.import_from(file), "rows read")
        make_console().print(f"{store.location} holds all of {file}", soft_wrap=True)
    return 0


def _print(counts: Mapping[str, int], what: str) -> None:
    table = Table("table", what)
    for name, count in counts.items():
        table.add_row(name, str(count))
    make_console().print(table)
