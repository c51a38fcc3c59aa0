"""What goes wrong, as `application/problem+json` (RFC 9457)."""

from __future__ import annotations

import logging
import re
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from autoprec.cluster.client import ClusterError
from autoprec.errors import MissingError, StoreError, UserError

MEDIA_TYPE = "application/problem+json"
_LOG = logging.getLogger("uvicorn.error")


class Problem(BaseModel):
    """What went wrong.

    Attributes:
        type: Always `about:blank`: the status says the kind.
        title: The status in words.
        status: The HTTP status.
        detail: One sentence: what was wrong, and what to do.
    """

    type: str = "about:blank"
    title: str
    status: int
    detail: str


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return a response that says what went wrong."""
    told = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail)
    return JSONResponse(told.model_dump(), status, headers, MEDIA_TYPE)


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what the OpenAPI description says of the errors of a route; those of every route are added."""
    schema = {"schema": {"$ref": "#/components/schemas/Problem"}}
    return {
        status: {"description": HTTPStatus(status).phrase}
        | ({} if status == HTTPStatus.NOT_MODIFIED else {"content": {MEDIA_TYPE: schema}})
        for status in (400, 401, 403, *statuses, 503)
    }


LIST = described(304, 422)
"""What lists may answer besides."""
ONE = described(304, 404, 422)
"""What may be answered where one thing is asked for."""


def handle_problems(app: FastAPI) -> None:
    """Answer every error of an app as a problem."""

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        headers = dict(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:  # the first route of a path knows its own only
            headers["Allow"] = ", ".join(sorted(_methods(app, request)))
        return problem(error.status_code, str(error.detail), headers)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = " ".join(str(part) for part in first["loc"])
        return problem(422, f"{where}: {first['msg']}")

    # What the store says names where it lies, and what raises unexpectedly could name anything: that is for
    # those who run the server.
    @app.exception_handler(MissingError)
    async def _missing(request: Request, error: MissingError) -> JSONResponse:
        return problem(404, "the store has no plan or job of this number or name")

    @app.exception_handler(StoreError)
    async def _store(request: Request, error: StoreError) -> JSONResponse:
        _LOG.error("%s", error)
        return problem(503, "the store cannot be used now; the server's log says why")

    @app.exception_handler(ClusterError)
    async def _cluster(request: Request, error: ClusterError) -> JSONResponse:
        return problem(503, str(error))

    @app.exception_handler(UserError)
    async def _user(request: Request, error: UserError) -> JSONResponse:
        return problem(422, str(error))

    @app.exception_handler(Exception)
    async def _any(request: Request, error: Exception) -> JSONResponse:
        return problem(500, "the server failed; its log says how")


def _methods(app: FastAPI, request: Request) -> set[str]:
    """Return the methods that the path of a request takes, by the description."""
    return {
        method.upper()
        for path, operations in app.openapi()["paths"].items()
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), request.url.path)
        for method in operations
    }
