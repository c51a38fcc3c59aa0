"""Which measured runs may go."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

from sqlalchemy import ColumnElement, CursorResult, Text, and_, delete, exists, literal, select
from sqlalchemy.orm import Session

from autoprec.store.models import ContextRow, JobRow, JobRunRow, PlanRow, PolicyRow, ProfileRow, RunRow
from autoprec.store.records import JOB_POLICY


def prune_runs(session: Session, older_than: datetime | None, version: tuple[str, str] | None) -> int:
    """Remove runs, profiles and what jobs have learnt as `Store.prune` says; return how many runs went.

    Contexts stay, even where nothing refers to them: they are small, and another process may have saved one
    that it is about to use.
    """
    run_matches: list[ColumnElement[bool]] = []
    profile_matches: list[ColumnElement[bool]] = []
    policy_matches: list[ColumnElement[bool]] = []
    its_job = PolicyRow.name == literal(JOB_POLICY, Text()).concat(JobRow.id)
    if older_than is not None:
        run_matches.append(RunRow.measured_at < older_than)
        profile_matches.append(ProfileRow.created_at < older_than)
        policy_matches.append(PolicyRow.created_at < older_than)
    if version is not None:
        library, number = version
        contexts = session.execute(select(ContextRow.key, ContextRow.versions))
        keys = [key for key, versions in contexts if versions.get(library) == number]
        run_matches.append(RunRow.context_key.in_(keys))
        profile_matches.append(ProfileRow.context_key.in_(keys))
        policy_matches.append(exists().where(its_job, JobRow.context_key.in_(keys)))

    resumable = JobRow.state != "finished"
    if older_than is not None:
        resumable = and_(resumable, JobRow.updated_at >= older_than)
    needed_by_job = exists().where(JobRunRow.run_id == RunRow.id, JobRow.id == JobRunRow.job_id, resumable)
    behind_plan = exists().where(
        PlanRow.context_key == RunRow.context_key, PlanRow.plan_key == RunRow.plan_key
    )
    doomed = and_(*run_matches, ~needed_by_job, ~behind_plan)
    unsynchronised = {"synchronize_session": False}  # no row of these is loaded in the session
    result = session.execute(delete(RunRow).where(doomed), execution_options=unsynchronised)
    removed = cast("CursorResult[Any]", result).rowcount

    profiled_for_job = exists().where(JobRow.context_key == ProfileRow.context_key, resumable)
    stale = delete(ProfileRow).where(*profile_matches, ~profiled_for_job)
    session.execute(stale, execution_options=unsynchronised)

    learnt = PolicyRow.name.startswith(JOB_POLICY, autoescape=True)
    needed = exists().where(its_job, resumable)
    forgotten = delete(PolicyRow).where(learnt, *policy_matches, ~needed)
    session.execute(forgotten, execution_options=unsynchronised)
    return removed
