"""The files that travel with a job."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import URL

from autoprec.cluster.place import STORE_FILE
from autoprec.errors import UserError

MOST_BYTES = 100 * 10**6
"""Larger directories are refused: Ray keeps what travels in the memory of its head."""
LEFT_OUT = frozenset({
    ".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache",
    ".ruff_cache", "autoprec-out",
})  # fmt: skip
"""Directories that never travel."""


def stage(source: Path | None, target: Path, store: URL) -> None:
    """Copy what travels, and where the store is, into an empty directory.

    A SQLite store among the files stays: to copy a file that this process has open as a database takes its
    locks away, after which others damage it (section 2.2 of "How To Corrupt An SQLite Database File").

    Args:
        source: The workload's directory, or `None`.
        target: The directory, which only this user may read.
        store: The store's URL, password included.

    Raises:
        UserError: The files are too large, or one cannot be read.
    """
    if source is not None:
        files = [file for file in _files(source) if not str(file).startswith(str(store.database))]
        sizes = {file: file.stat().st_size for file in files}
        total = sum(sizes.values())
        if total > MOST_BYTES:
            largest = max(sizes, key=lambda file: sizes[file])
            raise UserError(
                f"the files of {str(source)!r} are {total / 1e6:.0f} MB, and at most "
                f"{MOST_BYTES / 1e6:.0f} MB travel to the cluster (largest: "
                f"{str(largest.relative_to(source))!r}, {sizes[largest] / 1e6:.0f} MB); "
                "name a smaller directory with working_dir, or put data where the cluster's nodes can read it"
            )
        for file in files:
            place = target / file.relative_to(source)
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)
            except OSError as error:
                raise UserError(f"cannot read {str(file)!r} to send it: {error.strerror or error}") from error
    place = target / STORE_FILE
    place.write_text(store.render_as_string(hide_password=False), encoding="utf-8")
    place.chmod(0o600)


def _files(folder: Path) -> Iterator[Path]:
    for place, directories, names in os.walk(folder):
        directories[:] = sorted(name for name in directories if name not in LEFT_OUT)
        for name in sorted(names):
            file = Path(place) / name
            if file.is_file() and name != STORE_FILE:  # a broken link, a socket: nothing to send
                yield file
