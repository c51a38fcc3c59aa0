"""What a service needs of a store: leases, claims, states of plans, tokens; on every backend."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_samples import make_context, make_job, make_plan, make_run

from autoprec.errors import MissingError, StoreError
from autoprec.store.store import Store


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "postgresql":
        url = str(request.getfixturevalue("postgres_server").create_database())
    else:
        url = str(tmp_path / "store.db")
    with Store.open(url) as opened:
        yield opened


@pytest.fixture
def context_key(store: Store) -> str:
    for name in ("j1", "j2"):
        store.create_job(make_job(name))
    return store.save_context(make_context())


def test_a_job_has_one_driver_until_its_lease_runs_out(store: Store, context_key: str) -> None:
    assert store.job_age("j1") is None
    assert store.take_job("j1", "a", 60) and store.take_job("j1", "a", 60)
    assert not store.take_job("j1", "b", 60)
    assert not store.heartbeat("j1", "b", seconds=60, progress={"runs": 1})
    assert store.job("j1").progress == {}
    assert store.heartbeat("j1", "a", seconds=0, progress={"runs": 2})  # runs out at once
    assert store.job("j1").progress == {"runs": 2}
    assert store.take_job("j1", "b", 60)
    assert not store.heartbeat("j1", "a", seconds=60)  # the former driver learns of it
    store.drop_job("j1", "a")
    assert not store.take_job("j1", "c", 60)
    store.drop_job("j1", "b")
    assert store.take_job("j1", "c", 60)
    age = store.job_age("j1")
    assert age is not None and 0 <= age < 60
    with pytest.raises(MissingError):
        store.take_job("nobody", "a", 60)
    with pytest.raises(StoreError, match="cannot be kept as JSON"):
        store.heartbeat("j1", "c", seconds=1, progress={"x": float("nan")})


def test_jobs_whose_driver_fell_silent_are_lost(store: Store, context_key: str) -> None:
    store.take_job("j1", "a", 60)
    assert store.lost_jobs(60) == [] and [job.id for job in store.lost_jobs(-1)] == ["j1"]
    store.update_job("j1", state="finished")
    assert store.lost_jobs(-1) == []


def test_a_plan_is_claimed_by_one_job_until_it_was_measured(store: Store, context_key: str) -> None:
    place = (context_key, "p1")
    assert store.claim_run("j1", *place, seconds=60) and store.claim_run("j1", *place, seconds=60)
    assert not store.claim_run("j2", *place, seconds=60)
    assert store.claim_run("j2", *place, seconds=60, split="final")
    assert store.claim_run("j2", context_key, "p2", seconds=60)
    store.begin_run("j1", *place, fresh=True)
    store.abandon_run("j1", *place, fresh=True)  # fresh runs are each job's own
    assert not store.claim_run("j2", *place, seconds=60)
    store.abandon_run("j1", *place, fresh=False)
    assert store.claim_run("j2", *place, seconds=60)
    store.finish_run("j2", context_key, make_run())
    assert store.claim_run("j1", *place, seconds=0)
    assert store.claim_run("j2", *place, seconds=60)  # the other's has run out


def test_many_who_claim_at_once_measure_each_plan_once(store: Store, context_key: str) -> None:
    plans = [f"p{number}" for number in range(12)]
    for number in range(8):
        store.create_job(make_job(f"w{number}"))
    measured: list[str] = []
    start = threading.Barrier(8)

    def work(job_id: str) -> None:
        start.wait()
        for plan in plans:
            while store.attach_run(job_id, context_key, plan, searcher="rl") is None:
                if not store.claim_run(job_id, context_key, plan, seconds=60):
                    continue
                if store.attach_run(job_id, context_key, plan, searcher="rl") is None:
                    measured.append(plan)
                    store.begin_run(job_id, context_key, plan, fresh=False)
                    store.finish_run(job_id, context_key, make_run(plan))

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(measured) == sorted(plans)
    for number in range(8):
        assert sorted(run.plan_key for run in store.job_runs(f"w{number}")) == sorted(plans)


def test_of_two_jobs_with_one_key_the_first_is_made(store: Store) -> None:
    first = store.create_job(make_job("j1", idempotency_key="k", owner="ada@here"))
    assert store.create_job(make_job("j2", idempotency_key="k")) == first
    assert [job.id for job in store.jobs()] == ["j1"]
    assert store.create_job(make_job("j3")).id == "j3"


def test_jobs_come_in_pages(store: Store) -> None:
    for number in range(5):
        store.create_job(make_job(f"j{number}"))
    first = store.jobs(limit=2)
    assert [job.id for job in (*first, *store.jobs(before=first[-1]))] == ["j4", "j3", "j2", "j1", "j0"]


def test_plans_move_along_their_life_cycle_and_the_trail_says_who(store: Store, context_key: str) -> None:
    first, second = (store.save_plan("j1", context_key, "best", make_plan(speedup=s)) for s in (2.0, 3.0))
    other = store.save_context(make_context(device={"name": "cpu-2"}))
    elsewhere = store.save_plan("j1", other, "best", make_plan())
    for plan in (first, elsewhere, second):
        assert store.set_plan_state(plan, "deployed", who="ada").state == "deployed"
    assert [store.plan(plan).state for plan in (first, elsewhere, second)] == [
        "verified", "deployed", "deployed",
    ]  # fmt: skip
    assert [(e.before, e.after, e.who) for e in store.plan_events(first)] == [
        (None, "candidate", "job j1"), ("candidate", "deployed", "ada"), ("deployed", "verified", "ada"),
    ]  # fmt: skip
    assert store.set_plan_state(second, "deployed", who="bob").state == "deployed"
    assert len(store.plan_events(second)) == 2  # nothing changed, so nothing is noted
    store.set_plan_state(second, "retired", who="bob", note="NaN in the field")
    best = store.best_plan(architecture="a1", device_name="cpu-1")
    assert best is not None and best.id == first
    with pytest.raises(StoreError, match="is retired and cannot become deployed; it can become candidate"):
        store.set_plan_state(second, "deployed", who="bob")
    with pytest.raises(StoreError, match="state is 'used'; use one of candidate"):
        store.set_plan_state(second, "used", who="bob")  # type: ignore[arg-type]
    with pytest.raises(MissingError, match="has no plan 99"):
        store.set_plan_state(99, "deployed", who="bob")
    assert [plan.id for plan in store.plans(state="verified")] == [first]
    assert store.best_plan(architecture="a1", state="candidate") is None


def test_plans_come_in_pages(store: Store, context_key: str) -> None:
    made = [store.save_plan("j1", context_key, "front", make_plan(speedup=1.0 + n)) for n in range(5)]
    page = store.plans(limit=2)
    rest = store.plans(before=page[-1].id)
    assert [plan.id for plan in (*page, *rest)] == made[::-1]
    assert store.plans(workload="other") == [] == store.plans(runtime="compile")


def test_tokens_are_kept_as_digests_and_named_once(store: Store) -> None:
    secret = store.create_token("ci", "submit")
    found = store.token(secret)
    assert found is not None and (found.name, found.scope, found.revoked_at) == ("ci", "submit", None)
    assert store.tokens()[0].last_used_at is not None
    assert store.token(secret + "x") is None and store.token("") is None and store.token("\ud800") is None
    with pytest.raises(StoreError, match="there is a token 'ci' already"):
        store.create_token("ci", "read")
    with pytest.raises(StoreError, match="scope is 'root'; use one of read, submit, admin"):
        store.create_token("x", "root")  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="name is empty"):
        store.create_token(" ", "read")
    store.revoke_token("ci")
    revoked = store.token(secret)
    assert revoked is not None and revoked.revoked_at is not None
    with pytest.raises(MissingError, match="has no token 'nobody'"):
        store.revoke_token("nobody")


def test_the_audit_trail_comes_in_pages(store: Store) -> None:
    for what in ("submitted", "stopped", "resumed"):
        store.audit("job", "j1", who="ada", what=what)
    store.audit("token", "ci", who="ada", what="created", note="scope read")
    first = store.audit_events(subject="job", limit=2)
    assert [event.what for event in first] == ["resumed", "stopped"]
    assert [e.what for e in store.audit_events(subject="job", before=first[-1].id)] == ["submitted"]
    assert [event.note for event in store.audit_events(key="ci")] == ["scope read"]
