"""`autoprec serve`: the store over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for a free one.")] = 8266,
    store: Annotated[
        str | None, typer.Option(help="URL or file of the store. Default: $AUTOPREC_STORE, or yours.")
    ] = None,
    require_tokens: Annotated[
        bool, typer.Option("--require-tokens", help="Ask for tokens on a loopback address too.")
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(help="Dashboard of the cluster that jobs go to. Default: none are taken."),
    ] = None,
    workloads: Annotated[
        Path | None,
        typer.Option(help="Directory whose files jobs may name as workloads. Default: only installed ones."),
    ] = None,
) -> None:
    """Serve the store over HTTP; the API describes itself at /api/v1/openapi.json."""
    from autoprec.serve_command import run_serve

    raise typer.Exit(run_serve(host, port, store, address, workloads, require_tokens=require_tokens))
