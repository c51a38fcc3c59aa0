"""One process a job: two that resumed the same job would count each other's runs as their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout
from platformdirs import user_data_path

from autoprec.errors import UserError


class JobRunningError(UserError):
    """Another process of this user, on this machine, runs the job."""


@contextmanager
def job_lock(job_id: str) -> Iterator[None]:
    """Hold a job while the body runs. The lock falls with the process, however that ends.

    Where the user's data directory takes no file there is no lock: that must not keep a job from running.

    Raises:
        JobRunningError: Another process holds it.
    """
    path = user_data_path("autoprec") / "locks" / f"{job_id}.lock"
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise JobRunningError(
            f"job {job_id} is being run by another process; wait until it ends, or stop it and resume"
        ) from None
    except OSError:
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()
