"""Several processes on one store, and processes that are killed."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from store_samples import make_context

import autoprec
from autoprec.store.store import Store

ROOT = Path(autoprec.__file__).parent.parent
WRITER = Path(__file__).parent / "writer.py"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_server").create_database())
    return str(tmp_path / "store.db")


def start_writer(url: str, job_id: str, prefix: str, count: int) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return subprocess.Popen(
        [sys.executable, str(WRITER), url, job_id, prefix, str(count)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_processes_open_a_fresh_store_at_once_and_lose_no_run(url: str) -> None:
    writers = [start_writer(url, "j1", f"w{number}", 25) for number in range(4)]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors
    with Store.open(url, upgrade=False) as store:
        keys = [run.plan_key for run in store.job_runs("j1")]
        assert len(store.jobs()) == 1
    assert sorted(keys) == sorted(f"w{writer}-{number}" for writer in range(4) for number in range(25))
    for writer in range(4):
        own = [key for key in keys if key.startswith(f"w{writer}-")]
        assert own == [f"w{writer}-{number}" for number in range(25)]


@pytest.mark.parametrize("seed", range(3))
def test_killed_writer_loses_at_most_the_run_in_flight(url: str, seed: int) -> None:
    writer = start_writer(url, "j1", "w", 100_000)
    assert writer.stdout.readline() == "open\n"
    time.sleep(random.Random(seed).uniform(0.05, 0.6))
    writer.kill()
    output, _ = writer.communicate(timeout=60)
    said = output.split("\n")[:-1]  # the last line may have been cut
    with Store.open(url, upgrade=False) as store:
        kept = [run.plan_key for run in store.job_runs("j1")]
        assert kept[: len(said)] == said
        assert len(kept) - len(said) <= 1
        # The next run was begun, unless the kill came just between two runs.
        key = make_context().key
        assert store.begin_run("j1", key, f"w-{len(kept)}", fresh=False) <= 1
        assert store.begin_run("j1", key, "w-0", fresh=False) == 0
    if "postgresql" not in url:
        with closing(sqlite3.connect(url)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_run_that_kills_its_process_is_counted(url: str) -> None:
    code = (
        "import os, sys; from autoprec.store.store import Store; "
        "s = Store.open(sys.argv[1]); "
        "print(s.begin_run('j1', sys.argv[2], 'deadly', fresh=False), flush=True); "
        "os.kill(os.getpid(), 9)"
    )
    writer = start_writer(url, "j1", "w", 1)
    assert writer.wait(timeout=60) == 0, writer.stderr.read()
    counts = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code, url, make_context().key], cwd=ROOT, text=True, capture_output=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60, check=False,
        )  # fmt: skip
        counts.append(done.stdout.strip())
    assert counts == ["0", "1", "2"]
