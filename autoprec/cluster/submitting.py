"""Submit tuning jobs to a Ray cluster, and go on with those that were left."""

from __future__ import annotations

import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from autoprec.cluster.client import RayClient
from autoprec.cluster.files import stage
from autoprec.cluster.handle import SubmittedJob
from autoprec.cluster.options import ClusterOptions
from autoprec.errors import SettingError, UserError
from autoprec.settings import TuneSettings
from autoprec.store.engine import resolve
from autoprec.store.records import Job
from autoprec.store.store import Store
from autoprec.terminal import this_user

BEGIN_SECONDS = 120.0
"""How long to wait for a job to begin, before it is left to begin later."""


def submit(
    workload: str,
    *,
    address: str | None = None,
    store: str | None = None,
    idempotency_key: str | None = None,
    owner: str | None = None,
    working_dir: str | Path | None = None,
    gpu: bool = False,
    threads: int | None = None,
    stations: int | None = None,
    device: str | None = None,
    run_seconds: float = 600.0,
    python: str | None = None,
    wait_for_start: bool = True,
    **options: Any,
) -> SubmittedJob:
    """Submit a tuning job to a Ray cluster and return at once, or when it has begun.

    Args:
        workload: `file.py:name` (the file's directory travels), `package.module:name`, or a ready-made name.
        address: The cluster's dashboard, such as `http://head:8265`. By default what `RAY_ADDRESS` names if
            that is an http address, else a Ray on this machine, which is started where there is none.
        store: URL of the store, which the cluster must reach too; see `tune`.
        idempotency_key: Of two jobs with the same key only the first is made; both calls return it.
        owner: Who asks, for people; by default the user on this host.
        working_dir: Directory whose files travel; by default that of the workload's file.
        gpu: Measure on GPUs; otherwise on the CPUs of nodes.
        threads: Threads of a station on a CPU; by default all cores of its node.
        stations: Most devices to use at once; by default all of one kind.
        device: Part of the name of the device to measure on.
        run_seconds: Longest that one measured run may take before it is stopped and counts as failed.
        python: The interpreter on the cluster; by default this one where the cluster is here, else `python`.
        wait_for_start: Wait until the job has begun, so that what keeps it from beginning is raised here.
        options: See `tune`: `objective`, `max_quality_drop`, `max_memory`, `budget`, `runtime`, `searcher`,
            `formats`, `seed`, `groups`, `exclude`, `fresh`.

    Raises:
        UserError: An option, the workload's files, the cluster or the store cannot be used.
    """
    named, folder = _files_of(workload, working_dir)
    settings = TuneSettings.check(workload=named, **options)
    client = RayClient(address)
    cluster = ClusterOptions.check(
        settings=settings.model_dump(mode="json"),
        folder=None if folder is None else str(folder),
        gpu=gpu,
        threads=threads,
        stations=stations,
        device=device,
        run_seconds=run_seconds,
        python=python or client.python,
    )
    job = Job(
        id=uuid.uuid4().hex[:10],
        workload=named,
        settings=settings.model_dump(mode="json") | cluster.kept(),
        settings_key=settings.key,
        state="queued",
        phase="submitted",
        owner=owner or this_user(),
        idempotency_key=idempotency_key,
        address=client.address,
    )
    with Store.open(store) as opened:
        kept = opened.create_job(job)
        if kept.id != job.id:
            if kept.settings_key != job.settings_key:
                raise SettingError(
                    f"idempotency_key is {idempotency_key!r}, which job {kept.id} was submitted with, for "
                    "another workload or other options; use a new key"
                )
            return SubmittedJob(kept.id, store=store)
        opened.audit("job", job.id, who=job.owner or "", what="submitted", note=named)
        return _send(kept, cluster, client, opened, store, wait_for_start)


def resume(
    job_id: str, *, address: str | None = None, store: str | None = None, wait_for_start: bool = True
) -> SubmittedJob:
    """Go on with a job of a cluster that was stopped, failed or died.

    Args:
        job_id: The job.
        address: The cluster's dashboard; by default the one it was submitted to.
        store: The store that has the job.
        wait_for_start: See `submit`.

    Raises:
        UserError: It has finished, its driver lives, or it cannot be submitted.
    """
    with Store.open(store) as opened:
        job = opened.job(job_id)
        if job.state == "finished":
            raise SettingError(f"job {job_id} has finished; submit a new one")
        cluster = ClusterOptions.of(job)
        if not opened.take_job(job_id, "resuming", 0.0):
            raise SettingError(f"job {job_id} is being driven; stop it before it is resumed")
        client = RayClient(address or job.address)
        opened.update_job(job_id, state="queued", phase="submitted again", address=client.address, message="")
        opened.audit("job", job_id, who=this_user(), what="resumed", note="")
        return _send(job, cluster, client, opened, store, wait_for_start)


def _send(
    job: Job, options: ClusterOptions, client: RayClient, opened: Store, store: str | None, wait: bool
) -> SubmittedJob:
    """Hand a job to Ray; one that cannot be handed over has failed."""
    submission = f"autoprec-{job.id}-{uuid.uuid4().hex[:6]}"
    handle = SubmittedJob(job.id, store=store)
    try:
        with tempfile.TemporaryDirectory(prefix="autoprec-submit-") as folder:
            source = None if options.folder is None else Path(options.folder)
            stage(source, Path(folder), resolve(store))
            entrypoint = f"{options.python} -m autoprec.cluster.supervisor {job.id}"
            client.submit(entrypoint, submission, Path(folder))
        opened.update_job(job.id, submission_id=submission)
        if wait:
            _wait_for_start(job.id, submission, client, opened)
    except UserError as error:
        opened.update_job(job.id, state="failed", message=str(error))
        raise
    return handle


def _wait_for_start(job_id: str, submission: str, client: RayClient, store: Store) -> None:
    """Wait until a job has begun.

    Raises:
        UserError: It ended before; says what it printed last.
    """
    until = time.monotonic() + BEGIN_SECONDS
    while time.monotonic() < until and store.job(job_id).state == "queued":
        if (message := client.failure(submission)) is not None:
            if store.job(job_id).state == "queued":  # it may have begun and ended since
                raise UserError(f"job {job_id} could not begin on {client.address}: {message}")
            return
        time.sleep(0.5)


def _files_of(workload: str, working_dir: str | Path | None) -> tuple[str, Path | None]:
    """Return the workload as the cluster can load it, and the directory that travels."""
    place, _, name = workload.rpartition(":")
    if not place.endswith(".py"):
        return workload, None if working_dir is None else _directory(Path(working_dir))
    file = _expanded(Path(place))
    if not file.is_file():
        raise UserError(f"workload {workload!r}: there is no file {str(file)!r}")
    folder = file.parent if working_dir is None else _directory(Path(working_dir))
    if not file.is_relative_to(folder):
        raise SettingError(
            f"working_dir is {str(folder)!r}, which does not hold the workload's {str(file)!r}"
        )
    return f"{file.relative_to(folder)}:{name}", folder


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser().resolve()
    except RuntimeError as error:  # no such user
        raise UserError(f"{str(path)!r} cannot be found: {error}") from error


def _directory(folder: Path) -> Path:
    found = _expanded(folder)
    if not found.is_dir():
        raise SettingError(f"working_dir is {str(folder)!r}, which is no directory")
    return found
