"""What keeps a job from being submitted is one line that says what to do."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_nodes import free_port
from sqlalchemy import make_url

import autoprec
from autoprec.cluster import files
from autoprec.cluster.cores import CoresTakenError, cores_held
from autoprec.cluster.place import STORE_FILE
from autoprec.errors import UserError
from autoprec.store.store import Store

NOBODY = f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def workload(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text("class Mine: ...\n")
    return f"{tmp_path / 'mine.py'}:Mine"


@pytest.fixture
def somebody_else() -> Iterator[str]:
    """An address at which something listens that is no Ray."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"address": NOBODY}, f"nobody listens at {NOBODY}; start the head"),
        ({"address": "head:8265"}, "address is 'head:8265'; give the dashboard of a Ray cluster"),
        ({"address": "http://ada:secret@head:8265"}, "the address holds a password; give Ray's token"),
        ({"objective": "speed"}, "unknown objective 'speed'"),
        ({"budget": "soon"}, "budget is 'soon'"),
        ({"working_dir": "/nowhere"}, "working_dir is '/nowhere', which is no directory"),
    ],
)
def test_options_are_refused_before_anything_is_kept(workload, tmp_path, options, words):
    store = str(tmp_path / "store.db")
    with pytest.raises(UserError, match=words) as caught:
        autoprec.submit(workload, **{"address": NOBODY, "store": store} | options)
    assert "secret" not in str(caught.value) or "holds a password" in str(caught.value)
    assert not Path(store).exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threads": 0}, "threads is 0; give a whole number above 0"),
        ({"stations": True}, "stations is True"),
        ({"run_seconds": 0}, "run_seconds is 0"),
        ({"python": "python; rm -rf /"}, "python is 'python; rm -rf /'"),
    ],
)
def test_options_of_clusters_are_checked(options, words):
    from autoprec.cluster.options import ClusterOptions

    with pytest.raises(UserError, match=words):
        ClusterOptions.check(settings={}, **options)


def test_something_else_that_listens_is_told_apart(workload, tmp_path, somebody_else):
    with pytest.raises(UserError, match="does not answer as a Ray dashboard does"):
        autoprec.submit(workload, address=somebody_else, store=str(tmp_path / "store.db"))


def test_files_that_are_not_there_or_too_many_are_named(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="cannot be found"):
        autoprec.submit("~no-such-user/mine.py:Mine", address=NOBODY)
    with pytest.raises(UserError, match="there is no file"):
        autoprec.submit(f"{tmp_path}/absent.py:Mine", address=NOBODY)
    source, target = tmp_path / "source", tmp_path / "target"
    for folder in (source, source / "deep", source / ".git", target):
        folder.mkdir()
    (source / "mine.py").write_text("x = 1\n")
    (source / "deep" / "data.bin").write_bytes(b"0" * 5000)
    (source / ".git" / "history").write_text("long")
    store = make_url(f"sqlite:///{source / 'store.db'}")
    for name in ("store.db", "store.db-wal", STORE_FILE):
        (source / name).write_text("not to be touched")
    files.stage(source, target, store)
    found = {str(file.relative_to(target)) for file in target.rglob("*") if file.is_file()}
    assert found == {"mine.py", "deep/data.bin", STORE_FILE}
    assert (target / STORE_FILE).read_text() == str(store)
    assert (target / STORE_FILE).stat().st_mode & 0o077 == 0
    monkeypatch.setattr(files, "MOST_BYTES", 1000)
    with pytest.raises(UserError, match=r"at most .* travel .*largest: 'deep/data.bin'.*smaller directory"):
        files.stage(source, target, store)


def test_a_core_is_held_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = os.sched_getaffinity(0)
    with cores_held(1) as first:
        assert os.sched_getaffinity(0) == set(first) < before
        # Held cores are all that this process may use now, and they are taken.
        with pytest.raises(CoresTakenError, match="0 of 1 are free"), cores_held(1, patience=0):
            raise AssertionError("never reached")
    assert os.sched_getaffinity(0) == before
    with pytest.raises(CoresTakenError, match="this process may use"), cores_held(1 + len(before)):
        raise AssertionError("never reached")


def test_a_store_that_the_cluster_does_not_share_is_said_before_the_job_begins(workload, ray_cluster):
    with pytest.raises(UserError, match=r"could not begin .* has no job .*, as the cluster sees it"):
        autoprec.submit(workload, address=ray_cluster.address, store="sqlite://")


def test_a_workload_that_imports_what_the_cluster_lacks_fails_with_its_name(tmp_path, ray_cluster):
    (tmp_path / "lacks.py").write_text("import no_such_package\n\nclass Mine: ...\n")
    store = str(tmp_path / "store.db")
    job = autoprec.submit(f"{tmp_path}/lacks.py:Mine", address=ray_cluster.address, store=store)
    assert job.wait(120) == "failed"
    assert "no_such_package" in (job.record().message or "")
    with pytest.raises(UserError, match="no_such_package"):
        job.result()
    with Store.open(store) as opened:
        assert [found.id for found in opened.jobs(state="failed")] == [job.id]
