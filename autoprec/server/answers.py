"""Answers that can be asked for again cheaply (ETag), and lists in pages (Link)."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence

from fastapi import HTTPException, Request
from pydantic import TypeAdapter
from starlette.responses import Response

MOST = 1000
"""Longest page."""


def tagged(request: Request, body: bytes, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON answer, or 304 without a body where the client has it already (`If-None-Match`)."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    sent = {"ETag": tag, "Cache-Control": "no-cache", **(headers or {})}
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    if tag in known or known == ["*"]:
        return Response(status_code=304, headers=sent)
    return Response(body, headers=sent, media_type="application/json")


def only_known(request: Request) -> None:
    """Refuse a parameter of the query that the route does not know.

    A filter that is spelt wrongly would otherwise let everything through.

    Raises:
        HTTPException: There is one, or one is given twice.
    """
    known = [field.alias for field in request.scope["route"].dependant.query_params]
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            takes = f"; use {', '.join(known)}" if known else ""
            raise HTTPException(400, f"there is no parameter {name[:100]!r} here{takes}")
    if len(set(given)) < len(given):
        raise HTTPException(400, "a parameter is given twice")


def json_of(kind: object, value: object) -> bytes:
    """Return a value as JSON, as a model or a list of models says."""
    return bytes(TypeAdapter(kind).dump_json(value))  # type: ignore[arg-type]


def page(request: Request, kind: object, values: Sequence[object], limit: int, last: str | None) -> Response:
    """Return a page of a list, with a link to the next where this one is full.

    Args:
        request: What was asked.
        kind: The model of an element.
        values: The elements.
        limit: How many were asked for.
        last: Key of the last element.
    """
    headers = {}
    if len(values) == limit and last is not None:
        url = request.url.include_query_params(cursor=to_cursor(last))
        headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return tagged(request, json_of(list[kind], list(values)), headers)  # type: ignore[valid-type]


def to_cursor(key: str) -> str:
    """Return where a page ends, in a form that nobody should read."""
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def from_cursor(cursor: str | None) -> str | None:
    """Undo `to_cursor`.

    Raises:
        HTTPException: It is none.
    """
    if cursor is None:
        return None
    try:
        key = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode(
            "ascii"
        )
    except (binascii.Error, ValueError):
        key = ""
    if not key.isprintable() or not key:
        raise HTTPException(400, f"cursor is {cursor[:100]!r}, which no page gave")
    return key
