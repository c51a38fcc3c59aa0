"""Opening a store: how it is named, and what is said when it cannot be opened."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import event
from store_samples import make_context, make_job, make_run

import autoprec
from autoprec.errors import StoreError
from autoprec.store.store import Store

ROOT = Path(autoprec.__file__).parent.parent


def run_python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, check=False,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def no_store_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOPREC_STORE", raising=False)


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}", "sqlite+pysqlite:///{}"])
def test_file_is_named_by_path_or_url(tmp_path: Path, form: str) -> None:
    path = tmp_path / "with space %41 ü.db"
    with Store.open(form.format(str(path).replace("%", "%25") if "://" in form else path)) as store:
        assert store.location == str(path)
    assert path.is_file()


def test_relative_path_stays_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Store.open("store.db") as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        store.create_job(make_job())
        assert store.location == str(tmp_path / "store.db")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with Store.open() as store:
        assert store.location == str(tmp_path / "data" / "autoprec" / "autoprec.db")
    monkeypatch.setenv("AUTOPREC_STORE", str(tmp_path / "named.db"))
    with Store.open() as store:
        assert store.location == str(tmp_path / "named.db")
    with Store.open(str(tmp_path / "given.db")) as store:
        assert store.location == str(tmp_path / "given.db")


def test_default_place_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").write_text("a file")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with pytest.raises(StoreError, match=r"cannot make the folder .* name another place"):
        Store.open()


def test_memory_stores_are_apart_and_gone_when_closed() -> None:
    with Store.open("sqlite://") as one, Store.open("sqlite:///:memory:") as two:
        one.create_job(make_job())
        assert (len(one.jobs()), len(two.jobs())) == (1, 0)
        assert one.location == "memory"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "name is empty"),
        ("   ", "name is empty"),
        ("mysql://user:secret@host/db", "of kind 'mysql'"),
        ("postgresql+psycopg2://user:secret@host/db", r"of kind 'postgresql\+psycopg2'"),
        ("http://example.org/store", "of kind 'http'"),
        ("nonsense://", "of kind 'nonsense'"),
        ("postgresql://user:secret@host:port/db", "URL cannot be read"),
        ("://user:secret@", "URL cannot be read"),
        ("sqlite:store.db", "neither a path nor a URL"),
        ("sqlite:///file:store.db?uri=true", "SQLite takes timeout=SECONDS only"),
        ("no\x00name", "not a path that can be opened"),
        ("x" * 300 + ".db", "can be opened: File name too long"),
        ("sqlite:///store.db?colour=red", "SQLite takes timeout=SECONDS only"),
        ("sqlite:///store.db?timeout=long", "SQLite takes timeout=SECONDS only"),
        ("postgresql://user:secret@127.0.0.1:1/db?colour=red", 'invalid.*option "colour"'),
    ],
)
def test_name_that_means_nothing(
    url: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=message) as caught:
        Store.open(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_places_where_no_file_can_be(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder; name a file in it"):
        Store.open(str(tmp_path))
    with pytest.raises(StoreError, match="in a folder that does not exist; make the folder first"):
        Store.open(str(tmp_path / "none" / "store.db"))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a database at all, but long enough for SQLite to look at it" * 20, "is not a SQLite database"),
        (b"\x89PNG\r\n\x1a\n" + bytes(2000), "is not a SQLite database"),
    ],
)
def test_file_that_is_not_a_database(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=message):
        Store.open(str(path))
    assert path.read_bytes() == content


def test_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with Store.open(str(path)) as store:
        store.create_job(make_job())
    data = bytearray(path.read_bytes())
    data[4096:] = bytes(b ^ 0xA5 for b in data[4096:])  # the first page, with the schema, stays
    path.write_bytes(data)
    with pytest.raises(StoreError, match="is damaged; restore a copy") as caught:  # noqa: SIM117
        with Store.open(str(path)) as store:
            store.jobs()
    assert "\n" not in str(caught.value)


def test_empty_file_is_a_fresh_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch()
    with Store.open(str(path)) as store:
        assert store.jobs() == []


NOT_WRITABLE = """
import os, sys
from autoprec.errors import StoreError
from autoprec.store.store import Store
Store.open("sqlite://").close()  # imports what the other user may not be allowed to read
if os.geteuid() == 0:
    os.setegid(65534); os.seteuid(65534)
for path in sys.argv[1:]:
    try:
        Store.open(path)
    except StoreError as error:
        print(error)
"""


def test_place_that_is_not_writable(tmp_path: Path) -> None:
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.owner() == tmp_path.owner() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    closed = tmp_path / "closed"
    closed.mkdir()
    Store.open(str(closed / "store.db")).close()
    (closed / "store.db").chmod(0o444)
    closed.chmod(0o555)
    try:
        result = run_python(NOT_WRITABLE, str(closed / "new.db"), str(closed / "store.db"))
    finally:
        closed.chmod(0o755)
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert "new.db' cannot be opened; make its folder writable" in first
    assert "store.db' is read-only" in second or "store.db' cannot be opened" in second


NO_DRIVER = """
import sys
sys.modules["psycopg"] = None  # as where the extra is not installed
from autoprec.errors import StoreError
from autoprec.store.store import Store
try:
    Store.open("postgresql://user:secret@host/db")
except StoreError as error:
    print(error)
"""


def test_missing_driver_is_named() -> None:
    result = run_python(NO_DRIVER)
    assert result.stdout.strip() == (
        "store 'postgresql+psycopg://user:***@host/db' needs the PostgreSQL driver; "
        "run: pip install 'autoprec[postgres]'"
    )


def test_store_needs_no_torch_and_no_ray() -> None:
    code = (
        "import sys, autoprec.store.store; "
        "print([m for m in ('torch', 'ray', 'gymnasium', 'triton') if m in sys.modules])"
    )
    assert run_python(code).stdout.strip() == "[]"


def test_server_that_is_not_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        with pytest.raises(StoreError, match=r"cannot be used .*refused") as caught:
            Store.open(f"postgresql://user:secret@127.0.0.1:{port}/db?sslpassword=secret")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_server_refuses(postgres_server) -> None:
    url = postgres_server.url("postgres")
    password = url.split(":")[2].split("@")[0]
    with pytest.raises(StoreError, match="password authentication failed") as caught:
        Store.open(url.replace(password, "wrong-secret"))
    assert "wrong-secret" not in str(caught.value)
    with pytest.raises(StoreError, match='database "nowhere" does not exist'):
        Store.open(postgres_server.url("nowhere"))


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_postgres_is_named_as_people_do(postgres_server, scheme: str) -> None:
    url = postgres_server.create_database()
    password = url.split(":")[2].split("@")[0]
    with Store.open(url.replace("postgresql", scheme, 1)) as store:
        for text in (store.url, store.location, repr(store)):
            assert password not in text
            assert f"tester:***@127.0.0.1:{postgres_server.port}" in text


def test_postgres_restarts_under_an_open_store(postgres_server) -> None:
    with Store.open(postgres_server.create_database()) as store:
        key = store.save_context(make_context())
        store.create_job(make_job())
        for number in range(3):
            postgres_server.stop()
            postgres_server.start()
            store.finish_run("j1", key, make_run(f"p{number}"))
        assert [run.plan_key for run in store.job_runs("j1")] == ["p0", "p1", "p2"]


def test_lock_that_is_never_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoprec.store.database.RETRY_SECONDS", (0.01, 0.02))
    path = tmp_path / "store.db"
    with Store.open(f"sqlite:///{path}?timeout=0.05") as store:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="is locked by another process; try again"):
            store.create_job(make_job())
        assert store.jobs() == [], "readers do not wait for the writer"
        holder.execute("ROLLBACK")
        holder.close()
        store.create_job(make_job())


def test_full_disk(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "store.db")) as store:
        key = store.save_context(make_context())
        store.create_job(make_job())
        store.finish_run("j1", key, make_run("before"))

        # SQLite's own limit of the file's size gives the error that a full disk gives.
        def limit(connection: sqlite3.Connection, *_: object) -> None:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages}")

        event.listen(store._db._engine, "checkout", limit)
        with pytest.raises(StoreError, match="the disk is full; free some space"):
            store.save_profile(key, "large", {"x": "y" * 2**20})
        event.remove(store._db._engine, "checkout", limit)
        assert [run.plan_key for run in store.job_runs("j1")] == ["before"]
