"""The application: routes, tokens, errors."""

from __future__ import annotations

from fastapi import Depends, FastAPI
from pydantic import BaseModel

from autoprec import __version__
from autoprec.server.access import Access, Guard
from autoprec.server.answers import only_known
from autoprec.server.job_routes import Jobs, job_routes
from autoprec.server.plan_routes import plan_routes
from autoprec.server.problems import Problem, described, handle_problems
from autoprec.store.store import Store


class Health(BaseModel):
    """That the server and its store answer."""

    status: str
    version: str


def create_app(store: Store, *, require_tokens: bool, jobs: Jobs | None = None) -> FastAPI:
    """Return the application over a store.

    Args:
        store: The store; it stays open as long as the application is used.
        require_tokens: Whether requests without a token are refused. Without, only requests for this machine,
            from no page of another site, are answered.
        jobs: What hands jobs to a cluster; without it none can be submitted.
    """
    app = FastAPI(
        title="AutoPrec",
        version=__version__,
        description="Precision plans, what was measured for them, and tuning jobs.",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # its page loads scripts of others from the internet
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        dependencies=[Depends(only_known)],
    )
    access = Access(store, required=require_tokens)
    app.add_middleware(Guard, local_only=not require_tokens)
    handle_problems(app)
    app.include_router(plan_routes(store, access), prefix="/api/v1")
    app.include_router(job_routes(store, access, jobs), prefix="/api/v1")

    @app.get("/api/v1/health", response_model=Health, responses=described(), tags=["server"],
             summary="Whether the server and its store answer; needs no token")  # fmt: skip
    def health() -> Health:
        store.jobs(limit=1)
        return Health(status="ok", version=__version__)

    _describe(app, secured=require_tokens)
    return app


def _describe(app: FastAPI, *, secured: bool) -> None:
    """Put the model of errors into the OpenAPI description, and tokens only where they are required."""
    made = app.openapi

    def openapi() -> dict[str, object]:
        if app.openapi_schema is None:
            description = made()
            schemas = description.setdefault("components", {}).setdefault("schemas", {})
            schemas["Problem"] = Problem.model_json_schema()
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            for operation in (each for path in description["paths"].values() for each in path.values()):
                if not secured:
                    operation.pop("security", None)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
