"""Ray's Job Submission API, with its errors in one line."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from autoprec.errors import UserError, one_line

LOCAL = "http://127.0.0.1:8265"
START_SECONDS = 120
TOKEN = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
TOKEN_FILE = Path.home() / ".ray" / "auth_token"
"""Where Ray looks for its token where no variable names it."""


class ClusterError(UserError):
    """A cluster cannot be reached, or refuses what it is asked."""


class RayClient:
    """A connection to a cluster's dashboard.

    Args:
        address: `http://host:port`; see `autoprec.cluster.submitting.submit` for the default.

    Attributes:
        address: The same, without secrets.
        python: The interpreter to name there, where none is given.

    Raises:
        ClusterError: Nobody, or something else than Ray, answers there.
    """

    def __init__(self, address: str | None = None) -> None:
        given = address or os.environ.get("RAY_ADDRESS", "")
        if address is None and not given.startswith(("http://", "https://")):
            given = LOCAL
            _start_local_ray()
        parsed = urllib.parse.urlsplit(given)
        if parsed.scheme not in ("http", "https") or not parsed.hostname:
            raise ClusterError(
                f"address is {address!r}; give the dashboard of a Ray cluster, such as http://head:8265"
            )
        if parsed.username or parsed.password:
            raise ClusterError("the address holds a password; give Ray's token in RAY_AUTH_TOKEN instead")
        self.address = given
        here = parsed.hostname in ("127.0.0.1", "localhost", "::1", socket.gethostname())
        self.python = sys.executable if here else "python"
        if not _listens(parsed.hostname, parsed.port or (443 if parsed.scheme == "https" else 80)):
            raise ClusterError(
                f"nobody listens at {given}; start the head of a cluster with: ray start --head"
            )
        if any(name in os.environ for name in TOKEN) or TOKEN_FILE.exists():
            os.environ.setdefault("RAY_AUTH_MODE", "token")  # else Ray sends it nowhere
        with _told(f"{given} does not answer as a Ray dashboard does"):
            from ray.job_submission import JobSubmissionClient

            for name in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
                logging.getLogger(name).setLevel(logging.WARNING)  # they tell of every upload
            self._client = JobSubmissionClient(given)

    def submit(self, entrypoint: str, submission: str, folder: Path) -> None:
        """Submit a job whose files lie in `folder`.

        Raises:
            ClusterError: It is refused.
        """
        with _told(f"the cluster at {self.address} refuses the job"):
            self._client.submit_job(
                entrypoint=entrypoint,
                submission_id=submission,
                runtime_env={"working_dir": str(folder), "env_vars": {"RAY_USAGE_STATS_ENABLED": "0"}},
            )

    def failure(self, submission: str) -> str | None:
        """Return what a job said last that has ended badly, or `None`.

        Raises:
            ClusterError: The cluster does not know it, or does not answer.
        """
        with _told(f"the cluster at {self.address} cannot tell of {submission}"):
            info = self._client.get_job_info(submission)
            if not info.status.is_terminal() or info.status.value == "SUCCEEDED":
                return None
            said = [line for line in self._client.get_job_logs(submission).splitlines() if line.strip()]
            errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
            return str((errors or said or [info.message or "it printed nothing"])[-1])

    def status(self, submission: str) -> str:
        """Return Ray's status of a job.

        Raises:
            ClusterError: The cluster does not know it, or does not answer.
        """
        with _told(f"the cluster at {self.address} cannot tell of {submission}"):
            return str(self._client.get_job_status(submission).value)

    def stop(self, submission: str) -> None:
        """Ask a job to stop.

        Raises:
            ClusterError: The cluster does not know it, or does not answer.
        """
        with _told(f"the cluster at {self.address} cannot stop {submission}"):
            self._client.stop_job(submission)

    def logs(self, submission: str) -> str:
        """Return what a job printed so far.

        Raises:
            ClusterError: The cluster does not know it, or does not answer.
        """
        with _told(f"the cluster at {self.address} has no logs of {submission}"):
            return str(self._client.get_job_logs(submission))

    def follow(self, submission: str) -> Iterator[str]:
        """Yield what a job prints, until it ends.

        Raises:
            ClusterError: The cluster does not know it, or does not answer.
        """
        with _told(f"the cluster at {self.address} has no logs of {submission}"):
            tail = self._client.tail_job_logs(submission)
            loop = asyncio.new_event_loop()
            try:
                while True:
                    with contextlib.suppress(StopAsyncIteration):
                        yield loop.run_until_complete(anext(tail))
                        continue
                    return
            finally:
                loop.close()


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn what Ray's client raises, which is of many kinds, into one line."""
    try:
        yield
    except (GeneratorExit, KeyboardInterrupt, UserError):
        raise
    except Exception as error:
        raise ClusterError(f"{what}: {one_line(error)}") from error


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=10):
            return True
    except OSError:
        return False


def _start_local_ray() -> None:
    """Start Ray on this machine where no dashboard listens yet; it stays when this process ends.

    It asks for a token, since its ports are open to the network; one is made where there is none.
    """
    if _listens("127.0.0.1", 8265):
        return
    ray = str(Path(sys.executable).parent / "ray")
    environment = {"RAY_AUTH_MODE": "token", **os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    start = [ray, "start", "--head", "--dashboard-host=127.0.0.1", "--disable-usage-stats"]
    make_token = [ray, "get-auth-token", "--generate"]
    try:
        for command in (start,) if any(name in os.environ for name in TOKEN) else (make_token, start):
            subprocess.run(  # noqa: S603  (nothing of it is the user's)
                command, check=True, env=environment, timeout=START_SECONDS, capture_output=True, text=True,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or getattr(error, "stdout", None) or one_line(error)
        last = str(said).strip().splitlines()[-1:]
        raise ClusterError(f"Ray could not be started on this machine: {' '.join(last)}") from error
