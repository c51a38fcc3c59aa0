"""Jobs on a real Ray cluster with a real PostgreSQL: what dies takes nothing with it that was measured."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cluster_nodes import kill, wait_for

import autoprec
from autoprec.cluster.handle import SubmittedJob
from autoprec.cluster.submitting import resume
from autoprec.errors import UserError
from autoprec.store.store import Store

WORKLOAD = '''
import os
import signal
import time
import torch
from torch import nn

class Slow:
    seconds = 0.3

    def build_model(self):
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))

    def example_inputs(self):
        return torch.ones(1, 64)

    def quality(self, model):
        time.sleep(self.seconds)
        return 1.0

class Crashing(Slow):
    """Lower precision kills the process."""

    seconds = 0.0

    def fail(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def quality(self, model):
        if any(getattr(layer, "format_name", "fp32") != "fp32" for layer in model):
            self.fail()
        return 1.0

class Hanging(Crashing):
    """Lower precision never ends."""

    def fail(self):
        time.sleep(1000)
'''
OPTIONS = {
    "objective": "memory", "formats": "fp32,bf16,fp16_weight", "max_quality_drop": 0.1, "searcher": "random",
}  # fmt: skip


@pytest.fixture
def workload(tmp_path: Path) -> str:
    (tmp_path / "slow.py").write_text(WORKLOAD)
    return f"{tmp_path / 'slow.py'}:Slow"


@pytest.fixture
def store_url(postgres_server) -> str:
    return str(postgres_server.create_database())


def searched(store_url: str, job: SubmittedJob) -> list[str]:
    """Return the plans that the search of a job has measured so far, in order."""
    with Store.open(store_url) as store:
        return [run.plan_key for run in store.job_runs(job.id) if not run.fresh]


def more_runs(store_url: str, job: SubmittedJob, count: int = 3) -> list[str]:
    """Wait until a job has measured some more plans; return all of them."""
    before = len(searched(store_url, job))
    wait_for(lambda: len(searched(store_url, job)) >= before + count, 120, f"{count} more runs of {job.id}")
    return searched(store_url, job)


def test_a_job_survives_everything_that_can_be_killed(workload, store_url, ray_cluster, postgres_server):
    node = ray_cluster.add_node()
    job = autoprec.submit(
        workload, address=ray_cluster.address, store=store_url, budget=44, threads=1, **OPTIONS
    )
    more_runs(store_url, job)

    stations = ray_cluster.find("RemoteStation")
    assert len(stations) == 2
    stations[0].kill()  # a measuring worker
    known = more_runs(store_url, job)

    (driver,) = ray_cluster.find("autoprec.cluster.driver")
    driver.kill()
    assert known == more_runs(store_url, job)[: len(known)]
    known = searched(store_url, job)

    postgres_server.stop()  # at once, as a crash is
    time.sleep(3)
    postgres_server.start()
    assert known == more_runs(store_url, job)[: len(known)]
    known = searched(store_url, job)

    kill(node)
    assert known == more_runs(store_url, job)[: len(known)]

    assert job.wait(180) == "finished"
    measured = searched(store_url, job)
    assert len(measured) == len(set(measured)) == 44
    with Store.open(store_url) as store:
        assert not [run for run in store.job_runs(job.id) if run.cached]
        assert all(run.status == "ok" for run in store.job_runs(job.id))
    outcome = job.result()
    assert outcome.lossless is not None and outcome.job.heartbeat_at is not None
    assert "was killed by signal 9" in "".join(job.logs())


def test_what_is_stopped_or_dies_with_its_supervisor_is_resumed(workload, store_url, ray_cluster):
    job = autoprec.submit(workload, address=ray_cluster.address, store=store_url, budget=16, **OPTIONS)
    more_runs(store_url, job)
    with pytest.raises(UserError, match="is being driven; stop it"):
        resume(job.id, store=store_url)
    job.stop()
    assert job.status() == "interrupted"
    known = searched(store_url, job)
    with pytest.raises(UserError, match="is interrupted; go on with it by: autoprec jobs resume"):
        job.result()

    resume(job.id, store=store_url)
    assert known == more_runs(store_url, job)[: len(known)]
    for words in ("autoprec.cluster.supervisor", "autoprec.cluster.driver"):
        kill(ray_cluster.find(words))
    known = searched(store_url, job)
    assert job.wait(90) == "dead"  # its lease has run out

    resume(job.id, store=store_url)
    assert job.wait(120) == "finished"
    assert searched(store_url, job)[: len(known)] == known
    with Store.open(store_url) as store:
        assert [event.what for event in store.audit_events(subject="job", key=job.id)] == [
            "resumed", "resumed", "stopped", "submitted",
        ]  # fmt: skip
    with pytest.raises(UserError, match="has finished"):
        resume(job.id, store=store_url)


def test_what_one_job_measured_serves_the_next_and_one_key_makes_one_job(workload, store_url, ray_cluster):
    given = {"address": ray_cluster.address, "store": store_url, "budget": 6, **OPTIONS}
    first = autoprec.submit(workload, idempotency_key="nightly", **given)
    assert autoprec.submit(workload, idempotency_key="nightly", **given).id == first.id
    with pytest.raises(UserError, match=f"job {first.id} was submitted with.*use a new key"):
        autoprec.submit(workload, idempotency_key="nightly", seed=7, **given)
    assert first.wait(240) == "finished"
    second, anew = autoprec.submit(workload, **given), autoprec.submit(workload, fresh=True, **given)
    assert second.wait(240) == anew.wait(240) == "finished"
    with Store.open(store_url) as store:
        assert all(run.cached for run in store.job_runs(second.id) if not run.fresh)
        assert not any(run.cached for run in store.job_runs(anew.id))
        assert len(store.jobs()) == 3


def test_two_jobs_at_once_measure_no_plan_twice(workload, store_url, ray_cluster):
    node = ray_cluster.add_node()
    given = {"address": ray_cluster.address, "store": store_url, "budget": 10, "stations": 1, **OPTIONS}
    try:
        jobs = [autoprec.submit(workload, threads=1, **given) for _ in range(2)]
        assert [job.wait(180) for job in jobs] == ["finished", "finished"]
    finally:
        kill(node)
    with Store.open(store_url) as store:
        runs = [run for job in jobs for run in store.job_runs(job.id) if not run.fresh]
    assert len(runs) == 20
    own = [run.plan_key for run in runs if not run.cached]
    assert len(own) == len(set(own)) == 10


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("Crashing", "the process died 2 times while this plan ran"),
        ("Hanging", "it did not end within 8 s and was stopped"),
    ],
)
def test_candidates_that_crash_or_hang_take_nothing_else_down(workload, store_url, ray_cluster, kind, reason):
    job = autoprec.submit(
        workload.replace("Slow", kind), address=ray_cluster.address, store=store_url, budget=3,
        run_seconds=8, **(OPTIONS | {"formats": "fp32,bf16"}),
    )  # fmt: skip
    assert job.wait(300) == "finished"
    with Store.open(store_url) as store:
        failed = [run for run in store.job_runs(job.id) if run.status == "failed"]
    assert failed and {run.reason for run in failed} == {reason}
    assert job.result().lossless is not None
