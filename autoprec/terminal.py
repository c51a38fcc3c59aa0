"""The terminal that commands print to."""

from __future__ import annotations

import getpass
import os
import socket

from rich.console import Console

INTERRUPTED = 130
"""Exit code of a command that the user stopped: 128 and the number of SIGINT."""
LOG_WIDTH = 140
"""Columns of a table where the output is a file or a pipe, which have no width of their own."""


def make_console() -> Console:
    """Return a console for standard output, which prints what it is given: module names hold brackets."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = LOG_WIDTH
    return console


def this_user() -> str:
    """Return who runs this process, for the audit trail."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        name = f"user {os.getuid()}"
    return f"{name}@{socket.gethostname()}"


def interval_text(value: float, low: float, high: float) -> str:
    """Return a speedup with its interval."""
    return f"{value:.3f}x [{low:.3f}, {high:.3f}]"
