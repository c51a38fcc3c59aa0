"""Jobs over HTTP."""

from __future__ import annotations

from typing import Annotated, Protocol

from fastapi import APIRouter, Depends, Header, HTTPException, Path, Query, Request
from starlette.responses import Response

from autoprec.cluster.handle import state_of
from autoprec.errors import MissingError
from autoprec.server.access import Access
from autoprec.server.answers import MOST, from_cursor, json_of, page, tagged
from autoprec.server.problems import LIST, ONE, described
from autoprec.server.schemas import NO_NUL, JobRequest, JobSummary, job_summary
from autoprec.store.records import JobState, Run
from autoprec.store.store import Store

JobId = Annotated[str, Path(min_length=1, max_length=100, pattern=NO_NUL, description="Id of the job.")]


class Jobs(Protocol):
    """What hands jobs to a cluster."""

    def submit(self, asked: JobRequest, *, key: str | None, owner: str) -> str:
        """Submit a job and return its id.

        Raises:
            UserError: It cannot be submitted.
        """
        ...

    def stop(self, job_id: str, *, who: str) -> None:
        """Stop a job.

        Raises:
            UserError: It cannot be stopped.
        """
        ...


def job_routes(store: Store, access: Access, jobs: Jobs | None) -> APIRouter:
    """Return the routes; without `jobs` none can be submitted."""
    router = APIRouter(prefix="/jobs", tags=["jobs"])
    reader = [Depends(access.need("read"))]

    def cluster() -> Jobs:
        if jobs is None:
            raise HTTPException(503, "this server hands no jobs to a cluster; start it with --address")
        return jobs

    @router.get("", response_model=list[JobSummary], dependencies=reader, responses=LIST,
                summary="Jobs, the newest first")  # fmt: skip
    def listed(
        request: Request,
        state: JobState | None = None,
        workload: Annotated[str | None, Query(max_length=500, pattern=NO_NUL)] = None,
        limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
        cursor: Annotated[str | None, Query(max_length=500)] = None,
    ) -> Response:
        key = from_cursor(cursor)
        try:
            before = None if key is None else store.job(key)
        except MissingError:
            raise HTTPException(400, "the cursor is of another list, or its job is gone") from None
        found = store.jobs(state=state, workload=workload, limit=limit, before=before)
        last = found[-1].id if found else None
        return page(
            request, JobSummary, [job_summary(job, state_of(store, job)) for job in found], limit, last
        )

    @router.get("/{job}", response_model=JobSummary, dependencies=reader, responses=ONE,
                summary="One job")  # fmt: skip
    def one(request: Request, job: JobId) -> Response:
        found = store.job(job)
        return tagged(request, json_of(JobSummary, job_summary(found, state_of(store, found))))

    @router.get("/{job}/runs", response_model=list[Run], dependencies=reader, responses=ONE,
                summary="What the job measured, in order")  # fmt: skip
    def runs(
        request: Request,
        job: JobId,
        limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
        cursor: Annotated[str | None, Query(max_length=500)] = None,
    ) -> Response:
        key = from_cursor(cursor) or "0"
        if not (key.isascii() and key.isdigit()) or len(key) > 12:
            raise HTTPException(400, "the cursor is of another list")
        start = int(key)
        found = store.job_runs(job, offset=start, limit=limit)
        return page(request, Run, found, limit, str(start + len(found)))

    @router.post("", response_model=JobSummary, status_code=201, responses=described(409, 413, 422),
                 summary="Submit a job (scope submit: a workload is code)")  # fmt: skip
    def submit(
        asked: JobRequest,
        response: Response,
        who: str = Depends(access.need("submit")),
        to: Jobs = Depends(cluster),
        idempotency_key: Annotated[str | None, Header(max_length=200, pattern=NO_NUL)] = None,
    ) -> JobSummary:
        found = store.job(to.submit(asked, key=idempotency_key, owner=who))
        response.headers["Location"] = f"/api/v1/jobs/{found.id}"
        return job_summary(found, state_of(store, found))

    @router.post("/{job}/stop", response_model=JobSummary, responses=described(404, 413, 422),
                 summary="Stop a job (scope submit); what it measured is kept")  # fmt: skip
    def stop(
        job: JobId,
        who: str = Depends(access.need("submit")),
        to: Jobs = Depends(cluster),
    ) -> JobSummary:
        store.job(job)
        to.stop(job, who=who)
        found = store.job(job)
        return job_summary(found, state_of(store, found))

    return router
