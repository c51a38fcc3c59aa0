"""Who may do what: tokens, and what protects a server that asks for none."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import HTTPException, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autoprec.server.problems import problem
from autoprec.store import records
from autoprec.store.store import Store

MOST_BYTES = 64 * 1024
"""Longest body of a request."""
INCLUDED: dict[str, tuple[str, ...]] = {
    "read": ("read", "submit", "admin"),
    "submit": ("submit", "admin"),
    "admin": ("admin",),
}
"""What a scope is granted by."""
_BEARER = HTTPBearer(auto_error=False, description="A token of `autoprec tokens create`.")


def is_loopback(host: str) -> bool:
    """Say whether an address is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Access:
    """Checks tokens.

    Args:
        store: Holds them.
        required: Whether requests without one are refused.
    """

    def __init__(self, store: Store, *, required: bool) -> None:
        self._store = store
        self.required = required

    def need(self, scope: records.Scope) -> Callable[..., str]:
        """Return a dependency of routes that need a scope; it gives who asks, for the audit trail."""

        def check(
            given: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)] = None,
        ) -> str:
            if given is None:
                if self.required:
                    # Without an error code, as RFC 6750 asks where nothing was tried.
                    detail = "no token; send one as 'Authorization: Bearer ap_...'"
                    raise HTTPException(401, detail, {"WWW-Authenticate": "Bearer"})
                return "somebody on the server's machine"
            token = self._store.token(given.credentials)
            if token is None:
                raise _unauthorized("the token is unknown here")
            if token.revoked_at is not None:
                raise _unauthorized(f"the token {token.name!r} was revoked")
            if token.scope not in INCLUDED[scope]:
                raise HTTPException(
                    403,
                    f"the token {token.name!r} has the scope {token.scope}, and this needs {scope}",
                    {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'},
                )
            return f"token {token.name}"

        return check


class Guard:
    """Refuses what is too long, and, where no tokens are required, what a web page may have sent.

    A page in a browser on the same machine can reach a loopback address: by a name of its own that it points
    there (so only loopback names are answered), or by a form (so what comes from another origin is refused).

    Args:
        app: What answers.
        local_only: Whether no tokens are required.
    """

    def __init__(self, app: ASGIApp, *, local_only: bool) -> None:
        self._app = app
        self._local_only = local_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if self._local_only and (refusal := _foreign(headers)):
            await problem(403, refusal)(scope, receive, send)
            return
        if int(length if (length := headers.get("content-length", "0")).isdigit() else 0) > MOST_BYTES:
            await problem(413, f"the body is longer than {MOST_BYTES} bytes")(scope, receive, send)
            return
        await self._app(scope, _bounded(receive), send)


def _foreign(headers: dict[str, str]) -> str:
    """Return why a request may come from a page of another site, or nothing."""
    host = headers.get("host", "")
    if not is_loopback(_name(host)):
        return f"the host {host[:100]!r} is not this machine's; requests for others need --require-tokens"
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:  # another port is another's server
        return f"a page of {origin[:100]!r} may not send requests here"
    return ""


def _name(host: str) -> str:
    """Return a host without its port."""
    return host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]


def _bounded(receive: Receive) -> Callable[[], Awaitable[Message]]:
    left = MOST_BYTES

    async def bounded() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:  # a body without a length, in pieces
            raise HTTPException(413, f"the body is longer than {MOST_BYTES} bytes")
        return message

    return bounded


def _unauthorized(detail: str) -> Any:
    return HTTPException(401, detail, {"WWW-Authenticate": 'Bearer error="invalid_token"'})
