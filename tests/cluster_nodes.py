"""A private Ray cluster for the tests: a head and further nodes on this machine, stopped by their pids."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest

RAY = Path(sys.executable).parent / "ray"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RayCluster:
    """A cluster that only this process, and what it starts, has the token of.

    Attributes:
        address: Its dashboard.
        environment: What a process needs to reach it.
    """

    def __init__(self, cpus: int = 1) -> None:
        # Ray's sockets cannot have a long path.
        self.folder = Path(tempfile.mkdtemp(prefix="ap-", dir="/tmp"))
        self._mark = secrets.token_hex(8)
        # Once in a process: Ray reads them when it is first used, and goes by them ever after.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        self.environment = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            "AUTOPREC_TEST_CLUSTER": self._mark,
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_failure_threshold": "3",
        }
        self.port, dashboard = free_port(), free_port()
        self.address = f"http://127.0.0.1:{dashboard}"
        self._start(
            "--head", f"--port={self.port}", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}",
            f"--temp-dir={self.folder}", cpus=cpus,
        )  # fmt: skip

    def add_node(self, cpus: int = 1) -> list[psutil.Process]:
        """Start another node; return its processes, for killing it."""
        before = set(self.processes())
        # A directory of its own: nodes that share one remove each other's files of jobs.
        place = tempfile.mkdtemp(prefix="node-", dir=self.folder)
        self._start(f"--address=127.0.0.1:{self.port}", f"--temp-dir={place}", cpus=cpus)
        return [process for process in self.processes() if process not in before]

    def processes(self) -> list[psutil.Process]:
        """Return every process of the cluster, jobs and their drivers included."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("AUTOPREC_TEST_CLUSTER") == self._mark:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return [process for process in found if process.pid != os.getpid()]

    def find(self, words: str) -> list[psutil.Process]:
        """Return the processes whose command line holds some words."""
        found = []
        for process in self.processes():
            try:
                if words in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def stop(self) -> None:
        kill(self.processes())
        psutil.wait_procs(self.processes(), timeout=10)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, *arguments: str, cpus: int) -> None:
        command = [
            RAY, "start", *arguments, f"--num-cpus={cpus}", "--node-ip-address=127.0.0.1",
            f"--dashboard-agent-listen-port={free_port()}", f"--dashboard-agent-grpc-port={free_port()}",
            f"--runtime-env-agent-port={free_port()}", f"--metrics-export-port={free_port()}",
            f"--object-manager-port={free_port()}", f"--node-manager-port={free_port()}",
            "--min-worker-port=0", "--max-worker-port=0",
            f"--object-store-memory={100 * 2**20}", "--disable-usage-stats",
        ]  # fmt: skip
        run = subprocess.run(
            command, check=False, env=self.environment, capture_output=True, text=True, timeout=180
        )
        assert run.returncode == 0, run.stdout + run.stderr


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[RayCluster]:
    """A head with one CPU; the tests of a module share it."""
    cluster = RayCluster()
    try:
        yield cluster
    finally:
        cluster.stop()


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill processes at once; some may be gone already."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def wait_for(condition, seconds: float, what: str) -> None:
    """Wait until something holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"{what} did not come within {seconds} s"
        time.sleep(0.2)
