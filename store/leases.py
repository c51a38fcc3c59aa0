"""The store's part for what one process holds for a while: a job that it drives, a plan that it measures.

All times are by one clock: PostgreSQL's own, so that clocks of nodes may differ. Processes that share a
SQLite file are on one machine, whose clock serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import DateTime, func, or_, select, update
from sqlalchemy.orm import Session

from autoprec.store.checks import checked_json
from autoprec.store.database import Database
from autoprec.store.models import ClaimRow, ContextRow, JobRow
from autoprec.store.records import Job, utc_now
from autoprec.store.runs import Split


class LeaseStore:
    """Leases of jobs, and claims on plans."""

    _db: Database

    def take_job(self, job_id: str, token: str, seconds: float) -> bool:
        """Hold a job for a while, as the only one who drives it; who holds it already holds it for longer.

        Args:
            job_id: The job.
            token: Says who holds it; secret to the holder.
            seconds: For how long from now.

        Returns:
            Whether it is held now; not where somebody else's lease has not run out.

        Raises:
            StoreError: There is no such job.
        """
        return self._hold(job_id, token, seconds, {})

    def heartbeat(
        self, job_id: str, token: str, *, seconds: float, progress: Mapping[str, Any] | None = None
    ) -> bool:
        """Say that the holder of a job lives, and where the job stands; as `take_job` otherwise.

        Raises:
            StoreError: There is no such job, or the progress is not JSON.
        """
        told = {} if progress is None else {"progress": checked_json(progress, f"progress of job {job_id!r}")}
        return self._hold(job_id, token, seconds, told)

    def drop_job(self, job_id: str, token: str) -> None:
        """Let go of a job; where somebody else holds it, nothing happens."""
        statement = (
            update(JobRow)
            .where(JobRow.id == job_id, JobRow.lease_token == token)
            .values(lease_token=None, lease_until=None)
        )
        self._db.write(lambda session: session.execute(statement))

    def job_age(self, job_id: str) -> float | None:
        """Return the seconds since a job's driver was heard of; `None` where none ever was.

        Raises:
            StoreError: There is no such job.
        """

        def body(session: Session) -> float | None:
            heard = self._db.get(session, JobRow, job_id).heartbeat_at
            return None if heard is None else (self._now(session) - heard).total_seconds()

        return self._db.read(body)

    def lost_jobs(self, seconds: float) -> list[Job]:
        """Return the jobs that say they run, and whose driver was not heard of for so long."""

        def body(session: Session) -> list[Job]:
            query = select(JobRow).where(
                JobRow.state == "running",
                JobRow.heartbeat_at < self._now(session) - timedelta(seconds=seconds),
            )
            return [row.record() for row in session.scalars(query)]

        return self._db.read(body)

    def claim_run(
        self, job_id: str, context_key: str, plan_key: str, *, seconds: float, split: Split = "search"
    ) -> bool:
        """Say that a job measures a plan, so that no other does meanwhile.

        `finish_run` and `abandon_run` of this job give the claim back; otherwise it runs out.

        Args:
            job_id: The job.
            context_key: What the figures will hold for.
            plan_key: `Plan.key`.
            seconds: For how long from now; a job that has the claim already has it for so long.
            split: Part of the data that quality is judged on.

        Returns:
            Whether the job has the claim now.

        Raises:
            StoreError: There is no such job or context.
        """

        def body(session: Session) -> bool:
            self._db.get(session, JobRow, job_id)
            self._db.get(session, ContextRow, context_key)
            now = self._now(session)
            values = {
                "context_key": context_key,
                "plan_key": plan_key,
                "split": split,
                "job_id": job_id,
                "until": now + timedelta(seconds=seconds),
            }
            statement = self._db.insert(ClaimRow, values)
            session.execute(
                statement.on_conflict_do_update(
                    index_elements=["context_key", "plan_key", "split"],
                    set_={"job_id": statement.excluded.job_id, "until": statement.excluded.until},
                    where=or_(ClaimRow.job_id == job_id, ClaimRow.until <= now),
                )
            )
            holder = session.scalar(
                select(ClaimRow.job_id).where(
                    ClaimRow.context_key == context_key,
                    ClaimRow.plan_key == plan_key,
                    ClaimRow.split == split,
                )
            )
            return holder == job_id

        return self._db.write(body)

    def _hold(self, job_id: str, token: str, seconds: float, more: dict[str, Any]) -> bool:
        def body(session: Session) -> bool:
            self._db.get(session, JobRow, job_id)
            now = self._now(session)
            free = or_(JobRow.lease_token.is_(None), JobRow.lease_token == token, JobRow.lease_until <= now)
            values = {
                "lease_token": token,
                "lease_until": now + timedelta(seconds=seconds),
                "heartbeat_at": now,
            }
            statement = update(JobRow).where(JobRow.id == job_id, free).values(**values, **more)
            session.execute(statement, execution_options={"synchronize_session": False})
            holder = session.scalar(select(JobRow.lease_token).where(JobRow.id == job_id))
            return holder == token

        return self._db.write(body)

    def _now(self, session: Session) -> datetime:
        """Return the time by the clock that every holder goes by."""
        if session.get_bind().dialect.name == "postgresql":
            return session.scalars(select(func.clock_timestamp(type_=DateTime(timezone=True)))).one()
        return utc_now()
