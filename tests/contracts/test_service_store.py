"""What many at once ask of a store, and what dies meanwhile: one wins, none is lost; on every backend."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pytest
from store_samples import make_context, make_job, make_plan, make_run

import autoprec
from autoprec.errors import StoreError
from autoprec.store.records import Job
from autoprec.store.store import Store

ROOT = Path(autoprec.__file__).parent.parent
CLAIMER = Path(__file__).parent.parent / "store" / "claimer.py"
T = TypeVar("T")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_server").create_database())
    return str(tmp_path / "store.db")


def at_once(count: int, body: Callable[[int], T]) -> list[T]:
    """Call `body` with 0 to `count - 1`, each in a thread, all at the same moment."""
    start = threading.Barrier(count)
    results: dict[int, T] = {}

    def work(number: int) -> None:
        start.wait()
        results[number] = body(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(count)]


def test_processes_that_claim_at_once_measure_each_plan_once(url: str) -> None:
    count, plans = (16, 20) if url.startswith("postgresql") else (8, 20)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    with Store.open(url) as store:
        key = store.save_context(make_context())
        for number in range(count):
            store.create_job(make_job(f"w{number}", context_key=key))
        claimers = [
            subprocess.Popen(
                [sys.executable, str(CLAIMER), url, f"w{number}", str(plans)],
                cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for number in range(count)
        ]  # fmt: skip
        for claimer in claimers:  # each has opened the store before any begins
            assert claimer.stdout.readline() == "open\n"
        for claimer in claimers:
            claimer.stdin.write("go\n")
            claimer.stdin.flush()
        measured: list[str] = []
        for claimer in claimers:
            output, errors = claimer.communicate(timeout=200)
            assert claimer.returncode == 0, errors
            measured += output.split()
        assert sorted(measured) == sorted(f"p{number}" for number in range(plans))
        for number in range(count):
            keys = [run.plan_key for run in store.job_runs(f"w{number}")]
            assert sorted(keys) == sorted(measured)


def test_one_of_many_drivers_gets_a_job(url: str) -> None:
    with Store.open(url) as store:
        store.create_job(make_job("j1"))
        assert sum(at_once(16, lambda n: store.take_job("j1", f"driver {n}", 60))) == 1
        assert store.lost_jobs(60) == []


def test_of_many_jobs_with_one_key_one_is_made(url: str) -> None:
    with Store.open(url) as store:
        kept: list[Job] = at_once(
            16, lambda n: store.create_job(make_job(f"j{n}", idempotency_key="nightly"))
        )
        assert {job.id for job in kept} == {job.id for job in store.jobs()}
        assert len(store.jobs()) == 1


def test_of_many_who_deploy_at_once_one_plan_stays_deployed(url: str) -> None:
    with Store.open(url) as store:
        key = store.save_context(make_context())
        store.create_job(make_job("j1"))
        for attempt in range(3):
            plans = [
                store.save_plan("j1", key, "front", make_plan(speedup=1.5 + attempt + n / 10))
                for n in range(8)
            ]
            at_once(8, lambda n, ids=plans: store.set_plan_state(ids[n], "deployed", who=f"user {n}"))
            assert len(store.plans(state="deployed")) == 1
            for plan in plans:
                events = store.plan_events(plan)
                assert [event.before for event in events] == [None, *(event.after for event in events[:-1])]
                assert events[-1].after == store.plan(plan).state


def test_a_name_is_given_to_one_token(url: str) -> None:
    def create(_: int) -> str | None:
        try:
            return store.create_token("ci", "read")
        except StoreError:
            return None

    with Store.open(url) as store:
        (secret,) = [made for made in at_once(16, create) if made is not None]
        found = store.token(secret)
        assert found is not None and found.name == "ci"
        assert len(store.tokens()) == 1


def test_the_clock_of_a_node_does_not_matter(postgres_server, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(postgres_server.create_database()) as store:
        key = store.save_context(make_context())
        for name in ("j1", "j2"):
            store.create_job(make_job(name))
        for year in (2000, 2100):
            monkeypatch.setattr("autoprec.store.leases.utc_now", lambda y=year: datetime(y, 1, 1, tzinfo=UTC))
            assert store.take_job("j1", "a", 60) and not store.take_job("j1", "b", 60)
            assert store.claim_run("j1", key, "p", seconds=60)
            assert not store.claim_run("j2", key, "p", seconds=60)
            age = store.job_age("j1")
            assert age is not None and 0 <= age < 60
            assert store.lost_jobs(60) == []


def test_leases_outlive_a_server_that_is_restarted(postgres_server) -> None:
    with Store.open(postgres_server.create_database()) as store:
        key = store.save_context(make_context())
        for name in ("j1", "j2"):
            store.create_job(make_job(name))
        plan = store.save_plan("j1", key, "best", make_plan())
        assert store.take_job("j1", "a", 600) and store.claim_run("j1", key, "p", seconds=600)
        store.begin_run("j1", key, "p", fresh=False)
        postgres_server.stop()
        postgres_server.start()
        assert store.heartbeat("j1", "a", seconds=600, progress={"runs": 1})
        assert not store.take_job("j1", "b", 600) and not store.claim_run("j2", key, "p", seconds=600)
        postgres_server.stop()
        postgres_server.start()
        store.finish_run("j1", key, make_run("p"))
        assert store.claim_run("j2", key, "p", seconds=600)
        postgres_server.stop()
        postgres_server.start()
        assert store.set_plan_state(plan, "deployed", who="ada").state == "deployed"
        assert len(store.plan_events(plan)) == 2 and len(store.job_runs("j1")) == 1
