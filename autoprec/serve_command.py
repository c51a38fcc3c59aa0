"""What `autoprec serve` does."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import socket
from pathlib import Path

from autoprec.cluster.handle import SubmittedJob
from autoprec.cluster.submitting import submit
from autoprec.errors import SettingError, UserError
from autoprec.server.schemas import JobRequest
from autoprec.store.store import Store
from autoprec.terminal import make_console


class ClusterJobs:
    """Hands jobs to a Ray cluster.

    Args:
        address: Its dashboard.
        store: URL of the store.
        workloads: Directory whose files jobs may name; `None` for none.
    """

    def __init__(self, address: str, store: str | None, workloads: Path | None) -> None:
        self._address = address
        self._store = store
        self._workloads = None if workloads is None else workloads.expanduser().resolve()

    def submit(self, asked: JobRequest, *, key: str | None, owner: str) -> str:
        """Submit a job and return its id.

        Raises:
            UserError: It cannot be submitted.
        """
        options = asked.model_dump(exclude={"workload"})
        found = submit(
            self._place(asked.workload),
            address=self._address,
            store=self._store,
            idempotency_key=key,
            owner=owner,
            working_dir=self._workloads if ".py:" in asked.workload else None,
            wait_for_start=False,
            **options,
        )
        return found.id

    def stop(self, job_id: str, *, who: str) -> None:
        """Stop a job.

        Raises:
            UserError: It cannot be stopped.
        """
        SubmittedJob(job_id, store=self._store).stop(who=who)

    def _place(self, workload: str) -> str:
        """Return a workload by the path of its file, which must lie in the directory for them.

        Raises:
            SettingError: It does not, or none may be named.
        """
        file_name, _, name = workload.rpartition(":")
        if not file_name.endswith(".py"):
            return workload
        if self._workloads is None:
            raise SettingError(
                "workload names a file, and this server takes none; start it with --workloads DIRECTORY"
            )
        file = (self._workloads / file_name).resolve()
        if not file.is_relative_to(self._workloads) or not _is_file(file):
            raise SettingError(f"workload is {workload!r}; the server's workloads hold no such file")
        return f"{file}:{name}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name longer than a file's may be
        return False


def run_serve(
    host: str,
    port: int,
    store: str | None,
    address: str | None,
    workloads: Path | None,
    *,
    require_tokens: bool,
) -> int:
    """Serve until stopped; return the exit code.

    Raises:
        UserError: What serving needs is not installed, or it cannot listen there.
    """
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"serving needs {' and '.join(missing)}; run: pip install 'autoprec[serve]'")
    import uvicorn

    from autoprec.server.access import is_loopback
    from autoprec.server.app import create_app

    if workloads is not None and not workloads.is_dir():
        raise SettingError(f"workloads is {str(workloads)!r}, which is no directory")
    require_tokens = require_tokens or not is_loopback(host)
    with Store.open(store) as opened:
        if require_tokens and not any(token.revoked_at is None for token in opened.tokens()):
            raise UserError(
                f"listening at {host} needs tokens, and the store has none; make one first: "
                "autoprec tokens create NAME --scope admin"
            )
        jobs = None if address is None else ClusterJobs(address, store, workloads)
        app = create_app(opened, require_tokens=require_tokens, jobs=jobs)
        listening = _listen(host, port)
        shown = f"[{host}]" if ":" in host else host
        asks = "tokens required" if require_tokens else "no tokens, this machine only"
        make_console().print(
            f"Serving {opened.location} at http://{shown}:{listening.getsockname()[1]}/api/v1 ({asks})",
            soft_wrap=True,
        )
        config = uvicorn.Config(app, log_level="warning", server_header=False, access_log=False)
        # uvicorn ends in order and then raises the signal again, which SIGTERM would not survive.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])
    return 0


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        UserError: The address or the port cannot be had.
    """
    if not 0 <= port < 2**16:
        raise SettingError(f"port is {port}; give one from 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise UserError(
            f"cannot listen at {host} port {port}: {error.strerror or error}; choose another --port or --host"
        ) from error
    return listening
