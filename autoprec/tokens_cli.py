"""`autoprec tokens`: who may use the HTTP API."""

from __future__ import annotations

from typing import Annotated

import typer

tokens = typer.Typer(help="Tokens of the HTTP API.", no_args_is_help=True, rich_markup_mode=None)

_Store = Annotated[
    str | None, typer.Option(help="URL or file of the store. Default: $AUTOPREC_STORE, or yours.")
]


@tokens.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose it is, or what for.")],
    scope: Annotated[
        str, typer.Option(help="read; submit, which may also submit jobs; or admin, which may do everything.")
    ] = "read",
    store: _Store = None,
) -> None:
    """Make a token and print its secret, which is never shown again."""
    from autoprec.tokens_command import run_create

    raise typer.Exit(run_create(name, scope, store))


@tokens.command("list")
def listed(store: _Store = None) -> None:
    """List the tokens; their secrets are nowhere."""
    from autoprec.tokens_command import run_list

    raise typer.Exit(run_list(store))


@tokens.command("revoke")
def revoke(name: Annotated[str, typer.Argument(help="Name of the token.")], store: _Store = None) -> None:
    """Make a token worthless."""
    from autoprec.tokens_command import run_revoke

    raise typer.Exit(run_revoke(name, store))
