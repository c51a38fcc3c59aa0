"""The driver of one job on a cluster: it searches, the stations measure, the store keeps.

Run as `python -m autoprec.cluster.driver JOB TOKEN` by the supervisor. Whatever ends it, the next driver goes
on from the store.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import typer

from autoprec.cluster.exits import AGAIN, LEASE_SECONDS
from autoprec.cluster.options import ClusterOptions
from autoprec.cluster.place import open_store
from autoprec.errors import StoreError, UserError
from autoprec.job import TuningJob
from autoprec.progress import Progress, Standing
from autoprec.settings import TuneSettings
from autoprec.station import Measuring
from autoprec.store.records import Job
from autoprec.store.store import Store

HEARTBEAT_SECONDS = 5.0
NICENESS = 10
"""A driver gives way to a station on the same node."""


class Heartbeat(Progress):
    """Tells the store that the driver lives, and where the search stands; notes go to the log and the store.

    Args:
        store: Holds the job.
        job_id: The job.
        token: What this driver holds the job by.
    """

    def __init__(self, store: Store, job_id: str, token: str) -> None:
        self._store = store
        self._job_id = job_id
        self._token = token
        self._known: dict[str, Any] = {"notes": []}
        self._ended = threading.Event()

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Beat in a thread while the body runs; stop this process where another driver has the job."""
        thread = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def phase(self, name: str, detail: str = "", share: float | None = None) -> None:
        """See `Progress`."""
        if share is None:
            typer.echo(f"{name} {detail}".rstrip())

    def standing(self, standing: Standing) -> None:
        """See `Progress`."""
        best = standing.best
        self._known |= {
            "runs": standing.runs,
            "max_runs": standing.max_runs,
            "seconds": round(standing.seconds, 1),
            "max_seconds": standing.max_seconds,
            "best_speedup": None if best is None else round(1 / best.time, 4),
            "best_bytes": None if best is None else round(best.bytes),
            "best_drop": None if best is None else best.drop,
        }

    def note(self, text: str) -> None:
        """See `Progress`."""
        typer.echo(f"Note: {text}")
        self._known["notes"] = [*self._known["notes"], text][-20:]

    def beat(self) -> bool:
        """Tell the store once; return whether the job is still this driver's."""
        return self._store.heartbeat(
            self._job_id, self._token, progress=dict(self._known), seconds=LEASE_SECONDS
        )

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            try:
                if not self.beat():
                    typer.echo(f"error: job {self._job_id} has another driver; this one ends", err=True)
                    os.kill(os.getpid(), signal.SIGKILL)  # not a moment longer beside the other
            except StoreError as error:
                typer.echo(f"Note: the store could not be told: {error}")


def drive(job: Job, store: Store, token: str) -> None:
    """Run a job on the cluster of this process, or go on with it.

    Raises:
        UserError: The workload or a setting cannot be used.
        KeyboardInterrupt: It was stopped.
    """
    options = ClusterOptions.of(job)
    settings = TuneSettings.model_validate(options.settings)
    progress = Heartbeat(store, job.id, token)

    @contextlib.contextmanager
    def stations(tuning: TuningJob) -> Iterator[Measuring]:
        from autoprec.cluster.pool import StationPool  # imports ray

        pool = StationPool(
            options.order(job.id, settings),
            gpu=options.gpu,
            threads=options.threads,
            most=options.stations,
            device=options.device,
            run_seconds=options.run_seconds,
            note=progress.note,
            phase=tuning.phase,
        )
        tuning.discount(pool.waited)
        try:
            yield pool
        finally:
            pool.close()

    with progress.beating():
        result = TuningJob(settings, store, progress, workload=job.workload, job=job, stations=stations).run()
        for text in result.notes:
            progress.note(text)
        progress.beat()


def main(job_id: str, token: str) -> int:
    """Drive a job; return the exit code."""
    import ray
    import torch

    os.nice(NICENESS)
    torch.set_num_threads(1)
    try:
        ray.init(address="auto", namespace="autoprec", logging_level="ERROR", log_to_driver=False)
        signal.signal(signal.SIGTERM, _interrupt)  # after ray.init, which puts its own handler there
        with open_store() as store:
            if not store.take_job(job_id, token, LEASE_SECONDS):
                raise UserError(f"job {job_id} has another driver, which lives")
            drive(store.job(job_id), store, token)
    except KeyboardInterrupt:
        return 130
    except (StoreError, ConnectionError, ray.exceptions.RaySystemError) as error:
        typer.echo(f"error: {error}", err=True)
        return AGAIN
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        return 2
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
