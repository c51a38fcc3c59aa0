"""The terminal that commands print to."""

from __future__ import annotations

from rich.console import Console

LOG_WIDTH = 140
"""Columns of a table where the output is a file or a pipe, which have no width of their own."""


def make_console() -> Console:
    """Return a console for standard output."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=LOG_WIDTH)
