"""The store's part for jobs, and for the contexts that their figures hold for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import and_, or_, select, update
from sqlalchemy.orm import Session

from autoprec.errors import StoreError
from autoprec.store.checks import checked_json, one_of
from autoprec.store.database import Database
from autoprec.store.models import ContextRow, JobRow, ProfileRow
from autoprec.store.records import Context, Job, JobState, utc_now


class JobStore:
    """Contexts, their profiles, and jobs."""

    _db: Database

    def save_context(self, context: Context) -> str:
        """Keep a context and return its key. A context that is there already stays as it is."""
        device = context.device
        values = {
            "key": context.key,
            **context.model_dump(exclude={"device"}),
            "shapes": list(context.shapes),
            "device_name": device.name,
            "device_capability": device.capability,
            "runtime": device.runtime,
            "threads": device.threads,
            "versions": device.versions,
            "created_at": utc_now(),
        }
        self._db.write(lambda session: self._db.insert_new(session, ContextRow, values, "key"))
        return context.key

    def context(self, key: str) -> Context:
        """Return a context.

        Raises:
            StoreError: There is none with this key.
        """
        return self._db.read(lambda session: self._db.get(session, ContextRow, key).record())

    def save_profile(self, context_key: str, key: str, payload: Mapping[str, Any]) -> None:
        """Keep what cheap passes learnt, in place of what was kept under the same key.

        Args:
            context_key: What it holds for.
            key: Which profile, for example a digest of the formats that were profiled.
            payload: JSON: finite numbers, text, lists and dicts with text keys.

        Raises:
            StoreError: The payload is not JSON, or holds NaN or infinity.
        """
        values = {
            "context_key": context_key,
            "key": key,
            "payload": checked_json(payload, f"profile {key!r}"),
            "created_at": utc_now(),
        }

        def body(session: Session) -> None:
            self._db.get(session, ContextRow, context_key)
            statement = self._db.insert(ProfileRow, values)
            session.execute(
                statement.on_conflict_do_update(
                    index_elements=["context_key", "key"],
                    set_={"payload": statement.excluded.payload, "created_at": statement.excluded.created_at},
                )
            )

        self._db.write(body)

    def load_profile(self, context_key: str, key: str) -> dict[str, Any] | None:
        """Return a profile, or `None` where there is none."""

        def body(session: Session) -> dict[str, Any] | None:
            row = session.get(ProfileRow, (context_key, key))
            return None if row is None else row.payload

        return self._db.read(body)

    def profiles(self, context_key: str) -> list[dict[str, Any]]:
        """Return every profile that holds for a context, the newest first."""
        query = (
            select(ProfileRow.payload)
            .where(ProfileRow.context_key == context_key)
            .order_by(ProfileRow.created_at.desc())
        )
        return self._db.read(lambda session: list(session.scalars(query)))

    def create_job(self, job: Job) -> Job:
        """Keep a new job, and return it; where its idempotency key is taken, the job that took it.

        Raises:
            StoreError: Another job has its id, or its settings are not JSON.
        """
        values = job.model_dump() | {
            "settings": checked_json(job.settings, f"settings of job {job.id!r}"),
            "progress": checked_json(job.progress, f"progress of job {job.id!r}"),
        }

        def body(session: Session) -> Job:
            session.execute(self._db.insert(JobRow, values).on_conflict_do_nothing())
            if job.idempotency_key is not None:
                earlier = select(JobRow).where(JobRow.idempotency_key == job.idempotency_key)
                kept = session.scalar(earlier)
                if kept is not None:
                    return kept.record()
            same = select(JobRow).where(JobRow.id == job.id, JobRow.created_at == job.created_at)
            kept = session.scalar(same)
            if kept is None:
                raise StoreError(f"store {self._db.location!r} has another job {job.id!r}; use a new id")
            return kept.record()

        return self._db.write(body)

    def update_job(
        self,
        job_id: str,
        *,
        state: JobState | None = None,
        phase: str | None = None,
        context_key: str | None = None,
        elapsed_seconds: float | None = None,
        message: str | None = None,
        address: str | None = None,
        submission_id: str | None = None,
    ) -> None:
        """Change what is given of a job, and when it was updated. An empty message removes the message.

        Raises:
            StoreError: There is no such job or context, or the state is unknown.
        """
        given: dict[str, Any] = {
            "state": None if state is None else one_of("state", state, JobState),
            "phase": phase,
            "context_key": context_key,
            "elapsed_seconds": elapsed_seconds,
            "message": message,
            "address": address,
            "submission_id": submission_id,
        }
        values = {name: value for name, value in given.items() if value is not None}
        if message == "":
            values["message"] = None

        def body(session: Session) -> None:
            self._db.get(session, JobRow, job_id)
            if context_key is not None:
                self._db.get(session, ContextRow, context_key)
            session.execute(update(JobRow).where(JobRow.id == job_id).values(**values, updated_at=utc_now()))

        self._db.write(body)

    def job(self, job_id: str) -> Job:
        """Return a job.

        Raises:
            StoreError: There is none with this id.
        """
        return self._db.read(lambda session: self._db.get(session, JobRow, job_id).record())

    def jobs(
        self,
        *,
        limit: int | None = 100,
        state: JobState | None = None,
        workload: str | None = None,
        before: Job | None = None,
    ) -> list[Job]:
        """Return jobs, the newest first; `before` is the last job of the page before."""
        query = select(JobRow).order_by(JobRow.created_at.desc(), JobRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(
                or_(
                    JobRow.created_at < before.created_at,
                    and_(JobRow.created_at == before.created_at, JobRow.id < before.id),
                )
            )
        if state is not None:
            query = query.where(JobRow.state == one_of("state", state, JobState))
        if workload is not None:
            query = query.where(JobRow.workload == workload)
        return self._db.read(lambda session: [row.record() for row in session.scalars(query)])

    def resumable_job(self, settings_key: str) -> Job | None:
        """Return the newest job with these settings that has not finished.

        Its state may be `running`: the store cannot know whether the process that ran it still lives.
        """
        query = (
            select(JobRow)
            .where(JobRow.settings_key == settings_key, JobRow.state != "finished")
            .order_by(JobRow.created_at.desc(), JobRow.id.desc())
            .limit(1)
        )

        def body(session: Session) -> Job | None:
            row = session.scalar(query)
            return None if row is None else row.record()

        return self._db.read(body)
