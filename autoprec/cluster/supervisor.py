"""What Ray starts for a job: it keeps a driver at work until the job has ended.

Run as `python -m autoprec.cluster.supervisor JOB` in the job's working directory. It imports neither torch
nor Ray, holds nothing that could be lost, and starts the driver again where that was killed or lost its
store.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import uuid
from types import FrameType

import typer

from autoprec.cluster.exits import AGAIN, LEASE_SECONDS
from autoprec.cluster.place import open_store
from autoprec.errors import StoreError, UserError

STARTS = 8
"""Drivers that may end without one more run being kept, before the job is left to `autoprec jobs resume`."""
LONGEST_PAUSE = 60.0


def supervise(job_id: str) -> int:
    """Keep a driver at work; return the exit code.

    Raises:
        UserError: The store cannot be reached from here, does not know the job, or another has it.
    """
    token = uuid.uuid4().hex
    with open_store() as store:
        try:
            store.job(job_id)
        except StoreError as error:
            raise UserError(
                f"{error}, as the cluster sees it: if it is another store than yours, give one that both "
                "reach, such as postgresql://..."
            ) from error
        if not store.take_job(job_id, token, LEASE_SECONDS):
            raise UserError(f"job {job_id} has a driver that lives; stop it before another is started")
    stopped = threading.Event()
    child: subprocess.Popen[bytes] | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()
        if child is not None:
            child.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    kept, starts = -1, 0
    while True:
        command = [sys.executable, "-m", "autoprec.cluster.driver", job_id, token]
        child = subprocess.Popen(command)  # noqa: S603  (nothing of it is the user's)
        code = child.wait()
        if stopped.is_set() or (code >= 0 and code != AGAIN):
            return _end(job_id, token, code)
        now = _runs(job_id)
        starts = 1 if now > kept else starts + 1
        kept = max(kept, now)
        how = "lost its store or its cluster" if code == AGAIN else f"was killed by signal {-code}"
        if starts >= STARTS:
            typer.echo(f"error: the driver {how}, {starts} times in a row: resume the job when it can go on")
            return 1
        pause = min(LONGEST_PAUSE, 2.0 ** (starts - 1))
        typer.echo(f"Note: the driver {how}; the next one goes on in {pause:.0f} s")
        if stopped.wait(pause):
            return _end(job_id, token, code)


def _runs(job_id: str) -> int:
    """Return how many runs are kept; -1 where the store cannot tell."""
    try:
        with open_store() as store:
            return len(store.job_runs(job_id))
    except UserError:
        return -1


def _end(job_id: str, token: str, code: int) -> int:
    """Let go of the job, which says itself how it ended, unless its driver was killed while it stopped."""
    try:
        with open_store() as store:
            if store.job(job_id).state in ("queued", "running"):
                store.update_job(job_id, state="interrupted", message="stopped")
            store.drop_job(job_id, token)
    except UserError as error:
        typer.echo(f"Note: the store could not be told: {error}")
    return code


def main(job_id: str) -> int:
    """Supervise; a mistake is one line and exit code 2."""
    try:
        return supervise(job_id)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
