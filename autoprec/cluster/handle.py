"""A job that was submitted, from Python: how it stands, what it prints, what came of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from autoprec.cluster.client import ClusterError, RayClient
from autoprec.cluster.exits import LEASE_SECONDS
from autoprec.errors import SettingError, UserError
from autoprec.plan import Plan
from autoprec.store.records import Job
from autoprec.store.store import Store
from autoprec.terminal import this_user

ENDED = ("interrupted", "failed", "finished")
DEAD = "dead"
"""Shown in place of the state of a job that says it runs and whose driver was not heard of for long."""


@dataclass(frozen=True)
class JobOutcome:
    """What a job came to.

    Attributes:
        job: Its record.
        best: The plan for its goal; `None` where none meets it.
        lossless: The best lossless plan.
        front: The Pareto front of what was measured again.
    """

    job: Job
    best: Plan | None
    lossless: Plan | None
    front: tuple[Plan, ...]


class SubmittedJob:
    """A job of a cluster. Its record is in the store, and known when the cluster is gone.

    Args:
        job_id: The job.
        store: URL of the store that has it; see `tune`.
    """

    def __init__(self, job_id: str, *, store: str | None = None) -> None:
        self.id = job_id
        self._store = store

    def __repr__(self) -> str:
        return f"SubmittedJob({self.id!r})"

    def record(self) -> Job:
        """Return the job's record.

        Raises:
            StoreError: The store cannot be used, or has no such job.
        """
        with Store.open(self._store) as store:
            return store.job(self.id)

    def status(self) -> str:
        """Return its state: `queued`, `running`, `interrupted`, `failed`, `finished`, or `dead`.

        A job is dead that says it runs, and whose driver was not heard of for half a minute.

        Raises:
            StoreError: The store cannot be used, or has no such job.
        """
        with Store.open(self._store) as store:
            return state_of(store, store.job(self.id))

    def wait(self, timeout: float | None = None) -> str:
        """Wait until it has ended or is dead; return its state.

        Args:
            timeout: Longest to wait, in seconds; then the state is returned as it is.

        Raises:
            StoreError: The store cannot be used, or has no such job.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with Store.open(self._store) as store:
            while True:
                state = state_of(store, store.job(self.id))
                if state in (*ENDED, DEAD) or (until is not None and time.monotonic() > until):
                    return state
                time.sleep(0.5)

    def logs(self, follow: bool = False) -> Iterator[str]:
        """Yield what its driver printed, and with `follow` what it prints until it ends.

        Raises:
            ClusterError: The cluster is gone, or does not know it.
        """
        job = self.record()
        submission = _submission_of(job)
        client = RayClient(job.address)
        if follow:
            yield from client.follow(submission)
        else:
            yield client.logs(submission)

    def stop(self, *, who: str | None = None) -> None:
        """Stop it; every finished run is kept, and it can be resumed.

        Args:
            who: Who asks, for the audit trail; by default the user on this host.

        Raises:
            UserError: It has ended already, or the cluster is gone.
        """
        job = self.record()
        if job.state in ENDED:
            raise SettingError(f"job {self.id} has ended already: {job.state}")
        submission = _submission_of(job)
        client = RayClient(job.address)
        client.stop(submission)
        until = time.monotonic() + 30
        while client.status(submission) in ("RUNNING", "PENDING"):
            if time.monotonic() > until:
                raise ClusterError(f"job {self.id} was asked to stop and still runs after 30 s")
            time.sleep(0.2)
        with Store.open(self._store) as store:
            if store.job(self.id).state not in ENDED:  # its processes were killed before they could say so
                store.update_job(self.id, state="interrupted", message="stopped")
            store.audit("job", self.id, who=who or this_user(), what="stopped", note="")

    def result(self) -> JobOutcome:
        """Wait until it has ended, and return what came of it.

        Raises:
            UserError: It failed, was stopped or is dead; says why and how to go on.
        """
        state = self.wait()
        with Store.open(self._store) as store:
            job = store.job(self.id)
            if state != "finished":
                why = f": {job.message}" if job.message else ""
                raise UserError(
                    f"job {self.id} is {state}{why}; go on with it by: autoprec jobs resume {self.id}"
                )
            kept: dict[str, list[Plan]] = {"best": [], "lossless": [], "front": []}
            for found in store.plans(job_id=self.id, limit=None):
                kept[found.role].append(found.read())
        best, lossless = kept["best"], kept["lossless"]
        return JobOutcome(
            job, best[0] if best else None, lossless[0] if lossless else None, tuple(kept["front"])
        )


def state_of(store: Store, job: Job) -> str:
    """Return a job's state, or that it is dead."""
    if job.state == "running" and job.heartbeat_at is not None:
        age = store.job_age(job.id)
        if age is not None and age > LEASE_SECONDS:
            return DEAD
    return job.state


def _submission_of(job: Job) -> str:
    if job.submission_id is None:
        raise SettingError(f"job {job.id} was not handed to a cluster")
    return job.submission_id
