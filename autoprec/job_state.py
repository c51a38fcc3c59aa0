"""The states of a job in the store: whatever ends it, the store says so."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autoprec.errors import StoreError
from autoprec.lock import JobRunningError, job_lock
from autoprec.settings import TuneSettings
from autoprec.store.records import Job
from autoprec.store.store import Store


def new_job(store: Store, settings: TuneSettings, key: str, **more: str) -> Job:
    """Create a job of settings in the store; `key` finds it again, `more` is kept beside the settings."""
    job = Job(
        id=uuid.uuid4().hex[:10],
        workload=settings.workload,
        settings=settings.model_dump(mode="json") | more,
        settings_key=key,
    )
    store.create_job(job)
    return job


@contextmanager
def running_job(store: Store, job_id: str, elapsed: Callable[[], float]) -> Iterator[None]:
    """Hold a job while the body runs, and keep in the store how it ended.

    Args:
        store: Holds the job.
        job_id: The job.
        elapsed: Returns the wall seconds that the job has used.

    Raises:
        JobRunningError: Another process runs the job, which stays as it is.
    """
    try:
        with job_lock(job_id):
            store.update_job(job_id, state="running", message="")
            yield
    except JobRunningError:
        raise  # it is another process's, and stays in the state that it says
    except KeyboardInterrupt:
        store.update_job(job_id, state="interrupted", elapsed_seconds=elapsed())
        raise
    except StoreError:
        raise  # the store cannot be told
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:2000]
        store.update_job(job_id, state="failed", message=reason, elapsed_seconds=elapsed())
        raise
    store.update_job(job_id, state="finished", phase="finished", elapsed_seconds=elapsed())
