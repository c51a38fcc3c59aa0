"""The store's part for measured runs."""

from __future__ import annotations

import math
import uuid
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import ColumnElement, Delete, delete, func, or_, select
from sqlalchemy.orm import Session

from autoprec.errors import StoreError
from autoprec.store.checks import digest_of, one_of
from autoprec.store.database import Database
from autoprec.store.models import AttemptRow, ClaimRow, ContextRow, JobRow, JobRunRow, RunRow
from autoprec.store.prune import prune_runs
from autoprec.store.records import Run, utc_now

Split = Literal["search", "final"]
FAILURE_LIFETIME = timedelta(days=1)
"""A failure may pass (memory was short, another process disturbed): after this it is tried again."""


class RunStore:
    """Measured runs: begun, finished or abandoned, found again and removed."""

    _db: Database

    def begin_run(self, job_id: str, context_key: str, plan_key: str, *, fresh: bool) -> int:
        """Note that a run is in flight.

        Returns:
            How many times this job had begun the same run before without finishing it. The caller can
            so give up on a plan that kills the process.
        """
        values = {
            "token": uuid.uuid4().hex,
            "job_id": job_id,
            "context_key": context_key,
            "plan_key": plan_key,
            "fresh": fresh,
            "begun_at": utc_now(),
        }

        def body(session: Session) -> int:
            self._db.get(session, JobRow, job_id)
            self._db.get(session, ContextRow, context_key)
            self._db.insert_new(session, AttemptRow, values, "token")
            begun = session.scalar(
                select(func.count()).where(*_attempts(job_id, context_key, plan_key, fresh))
            )
            return (begun or 0) - 1

        return self._db.write(body)

    def finish_run(self, job_id: str, context_key: str, run: Run) -> int:
        """Keep a measured run of a job and forget that it was in flight, in one transaction.

        Keeping the same record (`measured_at` included) for the same job again changes nothing.

        Returns:
            The run's id.
        """
        values: dict[str, Any] = run.model_dump(exclude={"cached"})
        digest = digest_of(job_id, context_key, run.model_dump_json(exclude={"cached"}))
        values |= {"digest": digest, "context_key": context_key, "formats": list(run.formats)}

        def body(session: Session) -> int:
            self._db.get(session, JobRow, job_id)
            self._db.get(session, ContextRow, context_key)
            self._db.insert_new(session, RunRow, values, "digest")
            run_id = session.scalars(select(RunRow.id).where(RunRow.digest == digest)).one()
            self._link(session, job_id, run_id, run.searcher, cached=False)
            session.execute(
                delete(AttemptRow).where(*_attempts(job_id, context_key, run.plan_key, run.fresh))
            )
            if not run.fresh:
                session.execute(_claim(job_id, context_key, run.plan_key))
            return run_id

        return self._db.write(body)

    def abandon_run(self, job_id: str, context_key: str, plan_key: str, *, fresh: bool) -> None:
        """Forget that a run was in flight: it was stopped on purpose, and did not take the process down."""
        attempts = delete(AttemptRow).where(*_attempts(job_id, context_key, plan_key, fresh))

        def body(session: Session) -> None:
            session.execute(attempts)
            if not fresh:
                session.execute(_claim(job_id, context_key, plan_key))

        self._db.write(body)

    def job_runs(
        self, job_id: str, *, context_key: str | None = None, offset: int = 0, limit: int | None = None
    ) -> list[Run]:
        """Return the runs of a job, its own and those taken over, in the order in which it got them.

        With a context only those that hold for it: a job may measure in several runtimes. `offset` and
        `limit` give a page of them.

        `searcher` is who proposed the plan in this job; `cached` says which runs were taken over.

        Raises:
            StoreError: There is no such job.
        """
        query = (
            select(RunRow, JobRunRow.searcher, JobRunRow.cached)
            .join(JobRunRow, JobRunRow.run_id == RunRow.id)
            .where(JobRunRow.job_id == job_id)
            .order_by(JobRunRow.id)
            .offset(offset)
            .limit(limit)
        )
        if context_key is not None:
            query = query.where(RunRow.context_key == context_key)

        def body(session: Session) -> list[Run]:
            self._db.get(session, JobRow, job_id)
            return [
                row.record(searcher=searcher, cached=cached)
                for row, searcher, cached in session.execute(query)
            ]

        return self._db.read(body)

    def context_runs(self, context_key: str, job_id: str) -> list[Run]:
        """Return the runs of a context from the searches of all jobs with the same units as one job.

        In the order in which they were measured, and only those that all of the data judged; failed ones
        count for `FAILURE_LIFETIME`.

        Raises:
            StoreError: There is no such job.
        """
        query = (
            select(RunRow, JobRow.settings)
            .join(JobRunRow, JobRunRow.run_id == RunRow.id)
            .join(JobRow, JobRow.id == JobRunRow.job_id)
            .where(
                RunRow.context_key == context_key,
                RunRow.split == "search",
                RunRow.fresh.is_(False),
                RunRow.quality_share == 1,
                or_(RunRow.status == "ok", RunRow.measured_at > utc_now() - FAILURE_LIFETIME),
            )
            .order_by(RunRow.id)
        )

        def body(session: Session) -> list[Run]:
            wanted = _units_of(self._db.get(session, JobRow, job_id).settings)
            found = {row.id: row for row, settings in session.execute(query) if _units_of(settings) == wanted}
            return [row.record() for row in found.values()]

        return self._db.read(body)

    def find_run(
        self, context_key: str, plan_key: str, *, split: Split = "search", sliced_above: float = math.inf
    ) -> Run | None:
        """Return the newest run of a plan in a context from any job; never a fresh one.

        A failed run counts for `FAILURE_LIFETIME`: what failed may have been short of memory. One that was
        judged on a slice of the data counts where its drop is above `sliced_above` and none is on all of it.
        One that ended well comes before one that failed.
        """

        def body(session: Session) -> Run | None:
            row = _newest_run(session, context_key, plan_key, split, sliced_above)
            return None if row is None else row.record()

        return self._db.read(body)

    def attach_run(
        self,
        job_id: str,
        context_key: str,
        plan_key: str,
        *,
        searcher: str,
        split: Split = "search",
        sliced_above: float = math.inf,
    ) -> Run | None:
        """Take the run that `find_run` finds over into a job, if there is one. The run is not copied.

        Args:
            job_id: The job that would have measured it.
            context_key: What the figures must hold for.
            plan_key: `Plan.key`.
            searcher: Who proposed the plan in this job.
            split: Part of the data that quality was judged on.
            sliced_above: See `find_run`; by default only what was judged on all of the data will do.

        Returns:
            The run as `job_runs` will give it. A run that the job has already is returned as it is.
        """

        def body(session: Session) -> Run | None:
            self._db.get(session, JobRow, job_id)
            row = _newest_run(session, context_key, plan_key, split, sliced_above)
            if row is None:
                return None
            self._link(session, job_id, row.id, searcher, cached=True)
            link = session.scalars(
                select(JobRunRow).where(JobRunRow.job_id == job_id, JobRunRow.run_id == row.id)
            ).one()
            return row.record(searcher=link.searcher, cached=link.cached)

        return self._db.write(body)

    def prune(self, *, older_than: datetime | None = None, version: tuple[str, str] | None = None) -> int:
        """Remove measured runs that are old, or were measured with one version of a library.

        Where both are given, both must hold. Profiles that match go too, and the policies that
        jobs have learnt. Kept are the runs of plans in the
        store (their evidence stays traceable) and those of jobs that have not finished (to resume one
        would measure them again), unless the job has been left alone since `older_than`. The freed space
        is used again by later runs; the file does not shrink.

        Args:
            older_than: Runs that finished before.
            version: Library and version, as in `Device.versions`, for example `("torch", "2.11.0")`.

        Returns:
            How many runs were removed.

        Raises:
            StoreError: Neither is given.
        """
        if older_than is None and version is None:
            raise StoreError("prune() needs older_than or version; without either it would remove every run")
        return self._db.write(lambda session: prune_runs(session, older_than, version))

    def _link(self, session: Session, job_id: str, run_id: int, searcher: str, *, cached: bool) -> None:
        values = {"job_id": job_id, "run_id": run_id, "searcher": searcher, "cached": cached}
        self._db.insert_new(session, JobRunRow, values, "job_id", "run_id")


def _units_of(settings: dict[str, Any]) -> tuple[object, object]:
    """Return the settings that decide what a unit is: a run's formats are in the order of its job's units."""
    return settings.get("groups"), settings.get("exclude")


def _attempts(job_id: str, context_key: str, plan_key: str, fresh: bool) -> list[ColumnElement[bool]]:
    return [
        AttemptRow.job_id == job_id,
        AttemptRow.context_key == context_key,
        AttemptRow.plan_key == plan_key,
        AttemptRow.fresh == fresh,
    ]


def _claim(job_id: str, context_key: str, plan_key: str) -> Delete:
    """Return what gives back the claim of a job on a plan."""
    return delete(ClaimRow).where(
        ClaimRow.context_key == context_key, ClaimRow.plan_key == plan_key, ClaimRow.job_id == job_id
    )


def _newest_run(
    session: Session, context_key: str, plan_key: str, split: Split, sliced_above: float
) -> RunRow | None:
    judged = RunRow.quality_share == 1
    if math.isfinite(sliced_above):
        judged = or_(judged, RunRow.quality_drop > sliced_above)
    return session.scalar(
        select(RunRow)
        .where(
            RunRow.context_key == context_key,
            RunRow.plan_key == plan_key,
            RunRow.split == one_of("split", split, Split),
            RunRow.fresh.is_(False),
            judged,
            or_(RunRow.status == "ok", RunRow.measured_at > utc_now() - FAILURE_LIFETIME),
        )
        .order_by(
            (RunRow.status == "ok").desc(),
            RunRow.quality_share.desc(),
            RunRow.measured_at.desc(),
            RunRow.id.desc(),
        )
        .limit(1)
    )
