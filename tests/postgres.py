"""A private PostgreSQL server for the tests: its own cluster in a temporary folder, on a free port."""

from __future__ import annotations

import itertools
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, text

MISSING = (
    "PostgreSQL binaries not found: install Debian's postgresql package; "
    "the PostgreSQL half of the store's contract was NOT tested"
)

OPTIONS = "-c fsync=off -c shared_buffers=16MB"


class PostgresServer:
    """A running server that only this test run knows the password of."""

    def __init__(self, binaries: Path, folder: Path, options: str = OPTIONS) -> None:
        self._binaries = binaries
        self._folder = folder
        self._options = options
        self._password = secrets.token_hex(8)
        self._numbers = itertools.count()
        # PostgreSQL refuses to run as root.
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user:
            account = pwd.getpwnam(self._user)
            os.chown(folder, account.pw_uid, account.pw_gid)
        password_file = folder / "password"
        password_file.write_text(self._password)
        password_file.chmod(0o644)
        self._call(
            "initdb", "-D", "data", "-U", "tester", "-A", "scram-sha-256", "-E", "UTF8", "--no-sync",
            "--no-locale", "--pwfile=password",
        )  # fmt: skip
        for attempt in range(3):
            with socket.socket() as probe:  # another process may take the port before the server does
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
            try:
                self.start()
                return
            except subprocess.CalledProcessError:
                if attempt == 2:
                    raise

    def start(self) -> None:
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' "
            f"-c max_connections=60 {self._options}"
        )
        self._call("pg_ctl", "start", "-D", "data", "-l", "log", "-w", "-o", options)

    def stop(self) -> None:
        self._call("pg_ctl", "stop", "-D", "data", "-w", "-m", "immediate")

    def url(self, database: str) -> str:
        """Return the URL of a database, password included, as a user would write it."""
        url = URL.create("postgresql", "tester", self._password, "127.0.0.1", self.port, database)
        return url.render_as_string(hide_password=False)

    def create_database(self) -> str:
        """Make a fresh database and return its URL."""
        name = f"store{next(self._numbers)}"
        admin = create_engine(
            self.url("postgres").replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
        )
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} TEMPLATE template0"))
        admin.dispose()
        return self.url(name)

    def _call(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._binaries / program, *arguments], cwd=self._folder, check=True, timeout=120,
            user=self._user, group=self._user, extra_groups=[] if self._user else None,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


def find_binaries() -> Path | None:
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in [*debian, *map(Path, os.environ.get("PATH", "").split(os.pathsep))]:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder.resolve()
    return None


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server for the whole test run; the test is skipped where there are no binaries."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip(MISSING)
    folder = Path(tempfile.mkdtemp(prefix="autoprec-postgres-"))
    try:
        server = PostgresServer(binaries, folder)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)
