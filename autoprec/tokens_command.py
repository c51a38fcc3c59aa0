"""What `autoprec tokens` does and prints."""

from __future__ import annotations

from typing import Any

import typer
from rich.table import Table

from autoprec.store.store import Store
from autoprec.terminal import make_console, this_user


def run_create(name: str, scope: Any, store: str | None) -> int:
    """Make a token; its secret is all that goes to the output, so that a script can take it."""
    with Store.open(store) as opened:
        secret = opened.create_token(name, scope)
        opened.audit("token", name, who=this_user(), what="created", note=scope)
    typer.echo(secret)
    return 0


def run_list(store: str | None) -> int:
    """Print the tokens; return the exit code."""
    table = Table("name", "scope", "created", "last used", "revoked")
    with Store.open(store) as opened:
        for token in opened.tokens():
            times = (token.created_at, token.last_used_at, token.revoked_at)
            shown = ("" if time is None else time.isoformat(timespec="minutes") for time in times)
            table.add_row(token.name, token.scope, *shown)
    make_console().print(table if table.row_count else "The store has no tokens.")
    return 0


def run_revoke(name: str, store: str | None) -> int:
    """Make a token worthless; return the exit code."""
    with Store.open(store) as opened:
        opened.revoke_token(name)
        opened.audit("token", name, who=this_user(), what="revoked")
    make_console().print(f"Token {name} is revoked")
    return 0
