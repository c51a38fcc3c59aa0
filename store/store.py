"""The store: one class over SQLite or PostgreSQL. Frozen records go in and come out."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.orm import Session

from autoprec.errors import StoreError
from autoprec.plan import Plan
from autoprec.store.database import Database
from autoprec.store.models import (
    AttemptRow,
    ContextRow,
    JobRow,
    JobRunRow,
    PlanRow,
    PolicyRow,
    ProfileRow,
    RunRow,
)
from autoprec.store.policy_bytes import check_safetensors
from autoprec.store.prune import prune_runs
from autoprec.store.records import Context, Job, JobState, Run, StoredPlan, StoredPolicy, utc_now

Split = Literal["search", "final"]
Role = Literal["best", "front", "lossless"]
Objective = Literal["latency", "throughput", "memory"]


class Store:
    """Everything that was measured, and what was made of it.

    Thread-safe: share one `Store` between the threads of a process. Any number of processes may open the
    same store; after a fork, open another one. Records are frozen values; no database object leaves.

    Every method is one transaction. What has returned is kept if the process is killed the next instant.
    A transaction that fails for a passing reason (SQLite locked by another writer for longer than it waits,
    a PostgreSQL server that drops the connection or restarts) is tried again for about 8 seconds. That
    is safe even when the failed one had in fact been committed: writing a record twice keeps it once.

    Every method raises `StoreError`, one sentence, where the database cannot do its part. JSON values must
    be finite: write NaN as `None`.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self.url = database.url
        """The URL, its password hidden."""
        self.location = database.location
        """Where the store lies, for people: a path, or the URL."""

    @classmethod
    def open(cls, url: str | None = None, *, upgrade: bool = True) -> Store:
        """Open a store; a fresh one is created.

        Args:
            url: A file path, `sqlite:///path`, `sqlite://` (memory, gone when closed) or
                `postgresql://user:password@host:port/database`. `None`: what `AUTOPREC_STORE` names,
                else `autoprec.db` in the user's data directory.
            upgrade: Bring an older schema up to date; otherwise it is refused.

        Raises:
            StoreError: The store cannot be opened or made, is not AutoPrec's, or has a newer schema.
        """
        return cls(Database(url, upgrade=upgrade))

    def close(self) -> None:
        """Close every connection. Calling it twice is allowed; every other method then raises."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    # Contexts and profiles.

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
            "payload": _json(payload, f"profile {key!r}"),
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

    # Jobs.

    def create_job(self, job: Job) -> None:
        """Keep a new job.

        Raises:
            StoreError: Another job has its id, or its settings are not JSON.
        """
        values = job.model_dump() | {"settings": _json(job.settings, f"settings of job {job.id!r}")}

        def body(session: Session) -> None:
            self._db.insert_new(session, JobRow, values, "id")
            same = select(JobRow.id).where(JobRow.id == job.id, JobRow.created_at == job.created_at)
            if session.scalar(same) is None:
                raise StoreError(f"store {self.location!r} has another job {job.id!r}; use a new id")

        self._db.write(body)

    def update_job(
        self,
        job_id: str,
        *,
        state: JobState | None = None,
        phase: str | None = None,
        context_key: str | None = None,
        elapsed_seconds: float | None = None,
        message: str | None = None,
    ) -> None:
        """Change what is given of a job, and when it was updated. An empty message removes the message.

        Raises:
            StoreError: There is no such job or context, or the state is unknown.
        """
        given: dict[str, Any] = {
            "state": None if state is None else _one_of("state", state, JobState),
            "phase": phase,
            "context_key": context_key,
            "elapsed_seconds": elapsed_seconds,
            "message": message,
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
        self, *, limit: int | None = 100, state: JobState | None = None, workload: str | None = None
    ) -> list[Job]:
        """Return jobs, the newest first."""
        query = select(JobRow).order_by(JobRow.created_at.desc(), JobRow.id.desc()).limit(limit)
        if state is not None:
            query = query.where(JobRow.state == _one_of("state", state, JobState))
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

    # Measured runs.

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
        digest = _digest(job_id, context_key, run.model_dump_json(exclude={"cached"}))
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
            return run_id

        return self._db.write(body)

    def job_runs(self, job_id: str) -> list[Run]:
        """Return the runs of a job, its own and those taken over, in the order in which it got them.

        `searcher` is who proposed the plan in this job; `cached` says which runs were taken over.

        Raises:
            StoreError: There is no such job.
        """
        query = (
            select(RunRow, JobRunRow.searcher, JobRunRow.cached)
            .join(JobRunRow, JobRunRow.run_id == RunRow.id)
            .where(JobRunRow.job_id == job_id)
            .order_by(JobRunRow.id)
        )

        def body(session: Session) -> list[Run]:
            self._db.get(session, JobRow, job_id)
            return [
                row.record(searcher=searcher, cached=cached)
                for row, searcher, cached in session.execute(query)
            ]

        return self._db.read(body)

    def find_run(self, context_key: str, plan_key: str, *, split: Split = "search") -> Run | None:
        """Return the newest run of a plan in a context from any job, `ok` or `failed`; never a fresh one."""

        def body(session: Session) -> Run | None:
            row = _newest_run(session, context_key, plan_key, split)
            return None if row is None else row.record()

        return self._db.read(body)

    def attach_run(
        self, job_id: str, context_key: str, plan_key: str, *, searcher: str, split: Split = "search"
    ) -> Run | None:
        """Take the run that `find_run` finds over into a job, if there is one. The run is not copied.

        Args:
            job_id: The job that would have measured it.
            context_key: What the figures must hold for.
            plan_key: `Plan.key`.
            searcher: Who proposed the plan in this job.
            split: Part of the data that quality was judged on.

        Returns:
            The run as `job_runs` will give it. A run that the job has already is returned as it is.
        """

        def body(session: Session) -> Run | None:
            self._db.get(session, JobRow, job_id)
            row = _newest_run(session, context_key, plan_key, split)
            if row is None:
                return None
            self._link(session, job_id, row.id, searcher, cached=True)
            link = session.scalars(
                select(JobRunRow).where(JobRunRow.job_id == job_id, JobRunRow.run_id == row.id)
            ).one()
            return row.record(searcher=link.searcher, cached=link.cached)

        return self._db.write(body)

    def _link(self, session: Session, job_id: str, run_id: int, searcher: str, *, cached: bool) -> None:
        values = {"job_id": job_id, "run_id": run_id, "searcher": searcher, "cached": cached}
        self._db.insert_new(session, JobRunRow, values, "job_id", "run_id")

    # Plans.

    def save_plan(self, job_id: str, context_key: str, role: Role, plan: Plan) -> int:
        """Keep a plan with its evidence. Keeping the same plan in the same role again changes nothing.

        Returns:
            The plan's id.

        Raises:
            StoreError: The plan has no evidence, the role is unknown, or there is no such job or context.
        """
        if plan.evidence is None:
            raise StoreError(f"plan {plan.key} has no evidence; measure it before it is stored")
        text = plan.to_json()
        digest = _digest(job_id, context_key, _one_of("role", role, Role), text)
        values = {
            "digest": digest,
            "job_id": job_id,
            "context_key": context_key,
            "plan_key": plan.key,
            "role": role,
            "plan": text,
            "speedup": plan.evidence.speedup.value,
            "plan_bytes": plan.evidence.plan_bytes,
            "quality_drop": plan.evidence.quality.drop,
            "created_at": utc_now(),
        }

        def body(session: Session) -> int:
            self._db.get(session, JobRow, job_id)
            self._db.get(session, ContextRow, context_key)
            self._db.insert_new(session, PlanRow, values, "digest")
            return session.scalars(select(PlanRow.id).where(PlanRow.digest == digest)).one()

        return self._db.write(body)

    def plans(
        self,
        *,
        job_id: str | None = None,
        context_key: str | None = None,
        role: Role | None = None,
        limit: int | None = 100,
    ) -> list[StoredPlan]:
        """Return plans that match everything given, the newest first."""
        query = select(PlanRow).order_by(PlanRow.id.desc()).limit(limit)
        if job_id is not None:
            query = query.where(PlanRow.job_id == job_id)
        if context_key is not None:
            query = query.where(PlanRow.context_key == context_key)
        if role is not None:
            query = query.where(PlanRow.role == _one_of("role", role, Role))
        return self._db.read(lambda session: [row.record() for row in session.scalars(query)])

    def best_plan(
        self,
        *,
        fingerprint: str | None = None,
        architecture: str | None = None,
        workload: str | None = None,
        device_name: str | None = None,
        runtime: str | None = None,
        objective: Objective | None = None,
        max_quality_drop: float | None = None,
        max_bytes: int | None = None,
    ) -> StoredPlan | None:
        """Return the best stored plan that matches everything given, or `None`.

        The best is the one with the largest speedup, and for the objective `memory` the one that holds
        the fewest bytes; of equals the one that loses less quality, then the newest.

        Args:
            fingerprint: Of weights, quality code, data and shapes.
            architecture: Of the model's structure; a plan fits every model of its architecture.
            workload: Reference of the workload, as its job was given it.
            device_name: Where it was measured.
            runtime: What executed it.
            objective: `latency` and `throughput` leave only plans that were timed on such inputs.
            max_quality_drop: Largest absolute drop, on the evidence.
            max_bytes: Most bytes held, on the evidence.
        """
        equal = {
            ContextRow.fingerprint: fingerprint,
            ContextRow.architecture: architecture,
            ContextRow.device_name: device_name,
            ContextRow.runtime: runtime,
            ContextRow.purpose: objective if objective in ("latency", "throughput") else None,
            JobRow.workload: workload,
        }
        query = (
            select(PlanRow)
            .join(ContextRow, ContextRow.key == PlanRow.context_key)
            .join(JobRow, JobRow.id == PlanRow.job_id)
            .where(*(column == value for column, value in equal.items() if value is not None))
        )
        if max_quality_drop is not None:
            query = query.where(PlanRow.quality_drop <= max_quality_drop)
        if max_bytes is not None:
            query = query.where(PlanRow.plan_bytes <= max_bytes)
        if objective is not None:
            _one_of("objective", objective, Objective)
        order = PlanRow.plan_bytes.asc() if objective == "memory" else PlanRow.speedup.desc()
        query = query.order_by(order, PlanRow.quality_drop, PlanRow.id.desc()).limit(1)

        def body(session: Session) -> StoredPlan | None:
            row = session.scalar(query)
            return None if row is None else row.record()

        return self._db.read(body)

    # Policies.

    def save_policy(self, name: str, meta: Mapping[str, Any], weights: bytes) -> int:
        """Keep a trained policy. Keeping the same one again changes nothing.

        Args:
            name: For people; several policies may have the same.
            meta: JSON.
            weights: The bytes of a safetensors file.

        Returns:
            The policy's id.

        Raises:
            StoreError: The weights are not safetensors, or `meta` is not JSON.
        """
        check_safetensors(weights, name)
        checked = _json(meta, f"meta of policy {name!r}")
        digest = _digest(name, json.dumps(checked, sort_keys=True), hashlib.sha256(weights).hexdigest())
        values = {
            "digest": digest,
            "name": name,
            "meta": checked,
            "weights": weights,
            "created_at": utc_now(),
        }

        def body(session: Session) -> int:
            self._db.insert_new(session, PolicyRow, values, "digest")
            return session.scalars(select(PolicyRow.id).where(PolicyRow.digest == digest)).one()

        return self._db.write(body)

    def policies(self, *, name: str | None = None, limit: int | None = 100) -> list[StoredPolicy]:
        """Return policies, the newest first."""
        query = select(PolicyRow).order_by(PolicyRow.id.desc()).limit(limit)
        if name is not None:
            query = query.where(PolicyRow.name == name)
        return self._db.read(lambda session: [row.record() for row in session.scalars(query)])

    def policy(self, policy_id: int) -> StoredPolicy:
        """Return a policy.

        Raises:
            StoreError: There is none with this id.
        """
        return self._db.read(lambda session: self._db.get(session, PolicyRow, policy_id).record())

    # Upkeep.

    def prune(self, *, older_than: datetime | None = None, version: tuple[str, str] | None = None) -> int:
        """Remove measured runs that are old, or were measured with one version of a library.

        Where both are given, both must hold. Profiles that match go too, and contexts that nothing refers
        to any more. Kept are the runs of jobs that have not finished (resuming them would measure
        again) and the runs of plans in the store (their evidence stays traceable). The freed space is used
        again by later runs; the file does not shrink.

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


def _attempts(job_id: str, context_key: str, plan_key: str, fresh: bool) -> list[ColumnElement[bool]]:
    return [
        AttemptRow.job_id == job_id,
        AttemptRow.context_key == context_key,
        AttemptRow.plan_key == plan_key,
        AttemptRow.fresh == fresh,
    ]


def _newest_run(session: Session, context_key: str, plan_key: str, split: Split) -> RunRow | None:
    return session.scalar(
        select(RunRow)
        .where(
            RunRow.context_key == context_key,
            RunRow.plan_key == plan_key,
            RunRow.split == _one_of("split", split, Split),
            RunRow.fresh.is_(False),
        )
        .order_by(RunRow.measured_at.desc(), RunRow.id.desc())
        .limit(1)
    )


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _json(value: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the value as reading it back will give it."""
    try:
        checked: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(
            f"{what} cannot be kept as JSON ({error}); "
            "use text, lists, dicts and finite numbers, and None for NaN"
        ) from error
    return checked


def _one_of(argument: str, value: str, choices: Any) -> str:
    if value not in get_args(choices):
        raise StoreError(f"{argument} is {value!r}; use one of {', '.join(get_args(choices))}")
    return value
