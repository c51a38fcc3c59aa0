"""The contract of `Store`: one suite for every backend."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.numpy import load, save
from store_samples import make_context, make_device_profile, make_job, make_plan, make_run

from autoprec.errors import StoreError
from autoprec.plan import Plan
from autoprec.store.records import Run
from autoprec.store.store import Store

ODD_NAMES = [
    "'; DROP TABLE jobs; --",
    'a"b`c]d',
    "%s ? :name {x} \\0 \\u0000",
    "naïve 模型 🚀 \u202e\u0301",
    " leading and trailing ",
    "line\nbreak\ttab\r",
    "x" * 2000,
    "",
]


@pytest.fixture(params=["sqlite-file", "sqlite-memory", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_server").create_database()
    else:
        url = "sqlite://" if request.param == "sqlite-memory" else str(tmp_path / "store.db")
    with Store.open(url) as opened:
        yield opened


@pytest.fixture
def context_key(store: Store) -> str:
    """A context, and the jobs `j1` and `j2` in it."""
    key = store.save_context(make_context())
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for number in (1, 2):
        store.create_job(make_job(f"j{number}", context_key=key, created_at=start + timedelta(hours=number)))
    return key


def test_context_comes_back_as_it_went_in(store: Store) -> None:
    context = make_context()
    assert store.save_context(context) == context.key
    assert store.save_context(context) == context.key
    assert store.context(context.key) == context


def test_contexts_of_other_versions_and_shapes_are_kept_apart(store: Store) -> None:
    contexts = [
        make_context(),
        make_context(device={"versions": {"torch": "2.14.0"}}),
        make_context(device={"threads": 3}),
        make_context(device={"runtime": "compile"}),
        make_context(shapes=("int64 8x16",)),
        make_context(purpose="throughput"),
    ]
    keys = [store.save_context(context) for context in contexts]
    assert len(set(keys)) == len(keys)
    assert [store.context(key) for key in keys] == contexts


def test_what_is_absent_is_named(store: Store, context_key: str) -> None:
    calls = {
        "context 'none'": lambda: store.context("none"),
        "job 'none'": lambda: store.job("none"),
        "policy 7": lambda: store.policy(7),
    }
    by_job = [
        lambda: store.update_job("none", phase="x"),
        lambda: store.begin_run("none", context_key, "p", fresh=False),
        lambda: store.finish_run("none", context_key, make_run()),
        lambda: store.attach_run("none", context_key, "p", searcher="x"),
        lambda: store.job_runs("none"),
        lambda: store.save_plan("none", context_key, "best", make_plan()),
    ]
    by_context = [
        lambda: store.update_job("j1", context_key="none"),
        lambda: store.begin_run("j1", "none", "p", fresh=False),
        lambda: store.finish_run("j1", "none", make_run()),
        lambda: store.save_profile("none", "k", {}),
        lambda: store.save_plan("j1", "none", "best", make_plan()),
    ]
    cases = [
        *calls.items(),
        *(("job 'none'", c) for c in by_job),
        *(("context 'none'", c) for c in by_context),
    ]
    for named, call in cases:
        with pytest.raises(StoreError, match=f"has no {named}"):
            call()


def test_job_comes_back_and_is_updated(store: Store) -> None:
    job = make_job()
    store.create_job(job)
    assert store.job("j1") == job
    key = store.save_context(make_context())
    store.update_job("j1", state="failed", phase="search", context_key=key, elapsed_seconds=2.5, message="no")
    updated = store.job("j1")
    assert updated.updated_at > job.updated_at
    expected = {
        "state": "failed",
        "phase": "search",
        "context_key": key,
        "elapsed_seconds": 2.5,
        "message": "no",
    }
    assert updated == job.model_copy(update=expected | {"updated_at": updated.updated_at})
    store.update_job("j1", state="running", message="")
    assert (store.job("j1").state, store.job("j1").message) == ("running", None)
    assert store.job("j1").phase == "search"


def test_job_id_is_taken_once(store: Store) -> None:
    job = make_job(settings={"shape": (1, 2)})
    store.create_job(job)
    store.create_job(job)
    with pytest.raises(StoreError, match="another job 'j1'"):
        store.create_job(make_job(created_at=job.created_at + timedelta(seconds=1)))
    assert len(store.jobs()) == 1


def test_jobs_are_listed_newest_first(store: Store) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(5):
        store.create_job(
            make_job(
                f"j{number}",
                workload="minilm" if number % 2 else "mnist",
                state="finished" if number == 3 else "interrupted",
                created_at=start + timedelta(days=number),
            )
        )
    assert [job.id for job in store.jobs()] == ["j4", "j3", "j2", "j1", "j0"]
    assert [job.id for job in store.jobs(limit=2)] == ["j4", "j3"]
    assert [job.id for job in store.jobs(workload="minilm")] == ["j3", "j1"]
    assert [job.id for job in store.jobs(workload="minilm", state="interrupted")] == ["j1"]
    with pytest.raises(StoreError, match="state is 'done'; use one of queued, running, interrupted"):
        store.jobs(state="done")  # type: ignore[arg-type]


def test_newest_unfinished_job_is_resumed(store: Store, context_key: str) -> None:
    assert store.resumable_job("s1").id == "j2"
    store.update_job("j2", state="finished")
    assert store.resumable_job("s1").id == "j1"
    store.update_job("j1", state="failed")
    assert store.resumable_job("s1").id == "j1"
    store.update_job("j1", state="finished")
    assert store.resumable_job("s1") is None
    assert store.resumable_job("other") is None


def test_begun_runs_are_counted_until_one_finishes(store: Store, context_key: str) -> None:
    assert store.begin_run("j1", context_key, "p1", fresh=False) == 0
    assert store.begin_run("j1", context_key, "p1", fresh=False) == 1
    for other in [("j2", "p1", False), ("j1", "p2", False), ("j1", "p1", True)]:
        job_id, plan_key, fresh = other
        assert store.begin_run(job_id, context_key, plan_key, fresh=fresh) == 0, other
    store.finish_run("j1", context_key, make_run("p1"))
    assert store.begin_run("j1", context_key, "p1", fresh=False) == 0
    assert store.begin_run("j1", context_key, "p1", fresh=True) == 1
    assert store.begin_run("j2", context_key, "p1", fresh=False) == 1


def test_a_run_that_was_stopped_does_not_count_as_begun(store: Store, context_key: str) -> None:
    assert store.begin_run("j1", context_key, "p1", fresh=False) == 0
    assert store.begin_run("j1", context_key, "p1", fresh=True) == 0
    store.abandon_run("j1", context_key, "p1", fresh=False)
    store.abandon_run("j1", context_key, "never begun", fresh=False)
    assert store.begin_run("j1", context_key, "p1", fresh=False) == 0
    assert store.begin_run("j1", context_key, "p1", fresh=True) == 1


def test_runs_come_back_in_the_order_they_finished(store: Store, context_key: str) -> None:
    late = datetime(2030, 1, 1, tzinfo=UTC)
    runs = [make_run(f"p{n}", searcher=f"s{n}", measured_at=late - timedelta(days=n)) for n in range(6)]
    runs[3] = make_run("p3", status="failed", reason="out of memory", speedup=None, quality=None, reported={})
    ids = [store.finish_run("j1", context_key, run) for run in runs]
    assert ids == sorted(set(ids))
    assert store.job_runs("j1") == runs
    assert store.job_runs("j2") == []


def test_finishing_the_same_record_again_keeps_it_once(store: Store, context_key: str) -> None:
    run = make_run()
    first = store.finish_run("j1", context_key, run)
    assert store.finish_run("j1", context_key, run) == first
    again = run.model_copy(update={"measured_at": run.measured_at + timedelta(microseconds=1)})
    assert store.finish_run("j1", context_key, again) != first
    assert store.job_runs("j1") == [run, again]


def test_find_run_gives_the_newest_that_is_not_fresh(store: Store, context_key: str) -> None:
    other = store.save_context(make_context("f2"))
    assert store.find_run(context_key, "p1") is None
    day = datetime(2026, 1, 1, tzinfo=UTC)
    old, new = (make_run(quality=q, measured_at=day + timedelta(days=d)) for q, d in ((0.5, 1), (0.6, 2)))
    store.finish_run("j2", context_key, new)
    store.finish_run("j1", context_key, old)
    store.finish_run("j1", context_key, make_run(fresh=True, measured_at=day + timedelta(days=9)))
    store.finish_run("j1", context_key, make_run(split="final", measured_at=day + timedelta(days=8)))
    assert store.find_run(context_key, "p1") == new
    assert store.find_run(context_key, "p1", split="final").split == "final"
    assert store.find_run(context_key, "p2") is None
    assert store.find_run(other, "p1") is None
    failed = make_run(status="failed", reason="NaN", measured_at=day + timedelta(days=3))
    store.finish_run("j1", context_key, failed)
    assert store.find_run(context_key, "p1") == new  # a failure long ago may have passed
    failed = make_run(status="failed", reason="NaN")
    store.finish_run("j1", context_key, failed)
    assert store.find_run(context_key, "p1") == new  # what ended well comes before what failed


def test_a_run_judged_on_a_slice_serves_only_where_its_drop_is_enough(store: Store, context_key: str) -> None:
    sliced = make_run(quality_share=0.25, quality_drop=0.5)
    store.finish_run("j1", context_key, sliced)
    assert store.find_run(context_key, "p1") is None
    assert store.find_run(context_key, "p1", sliced_above=0.4) == sliced
    assert store.attach_run("j2", context_key, "p1", searcher="rl", sliced_above=0.6) is None
    assert store.attach_run("j2", context_key, "p1", searcher="rl") is None
    assert store.context_runs(context_key, "j1") == []
    attached = store.attach_run("j2", context_key, "p1", searcher="rl", sliced_above=0.4)
    assert attached is not None and attached.quality_share == 0.25 and attached.cached
    whole = make_run(quality_drop=0.3, slice_drop=0.5, measured_at=sliced.measured_at - timedelta(hours=1))
    store.finish_run("j1", context_key, whole)
    for above in (0.4, 0.6):
        assert store.find_run(context_key, "p1", sliced_above=above) == whole
    assert store.context_runs(context_key, "j1") == [whole]


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_a_share_of_the_data_is_above_0_and_at_most_1(share: float) -> None:
    with pytest.raises(ValidationError):
        make_run(quality_share=share)


def test_attached_run_is_linked_not_copied(store: Store, context_key: str) -> None:
    run = make_run(searcher="ilp")
    run_id = store.finish_run("j1", context_key, run)
    assert store.attach_run("j2", context_key, "p2", searcher="rl") is None
    expected = run.model_copy(update={"searcher": "rl", "cached": True})
    assert store.attach_run("j2", context_key, "p1", searcher="rl") == expected
    assert store.attach_run("j2", context_key, "p1", searcher="tpe") == expected
    assert store.job_runs("j2") == [expected]
    assert store.job_runs("j1") == [run]
    assert store.attach_run("j1", context_key, "p1", searcher="rl") == run
    assert store.find_run(context_key, "p1") == run
    assert store.finish_run("j2", context_key, make_run("p9")) == run_id + 1


def test_profile_is_replaced(store: Store, context_key: str) -> None:
    assert store.load_profile(context_key, "k") is None
    payload = {"time": [[0.5, None], [1e-300, -0.0]], "deep": {"a": [True, "ü\x00\ud800"]}}
    store.save_profile(context_key, "k", {"old": 1})
    store.save_profile(context_key, "k", payload)
    store.save_profile(context_key, "other", {})
    assert store.load_profile(context_key, "k") == payload
    assert store.load_profile(context_key, "other") == {}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), object(), b"bytes"])
def test_json_must_be_json(store: Store, context_key: str, bad: object) -> None:
    with pytest.raises(StoreError, match="profile 'k' cannot be kept as JSON"):
        store.save_profile(context_key, "k", {"x": [bad]})
    with pytest.raises(StoreError, match="settings of job 'j9' cannot be kept as JSON"):
        store.create_job(make_job("j9", settings={"x": bad}))
    with pytest.raises(StoreError, match="meta of policy 'n' cannot be kept as JSON"):
        store.save_policy("n", {"x": bad}, save({}))


def test_plan_comes_back_and_is_kept_once(store: Store, context_key: str) -> None:
    plan = make_plan(speedup=1.5, plan_bytes=123, drop=-0.25)
    plan_id = store.save_plan("j1", context_key, "best", plan)
    assert store.save_plan("j1", context_key, "best", plan) == plan_id
    assert store.save_plan("j1", context_key, "front", plan) != plan_id
    assert store.save_plan("j2", context_key, "front", plan) != plan_id
    (found,) = store.plans(role="best")
    assert Plan.from_json(found.plan) == plan
    assert (found.id, found.job_id, found.context_key) == (plan_id, "j1", context_key)
    assert (found.speedup, found.plan_bytes, found.quality_drop) == (1.5, 123, -0.25)
    assert [p.job_id for p in store.plans()] == ["j2", "j1", "j1"]
    assert [p.role for p in store.plans(job_id="j1")] == ["front", "best"]
    assert len(store.plans(limit=1)) == 1
    assert store.plans(context_key="none") == []


def test_plan_needs_evidence_and_a_known_role(store: Store, context_key: str) -> None:
    with pytest.raises(StoreError, match="has no evidence"):
        store.save_plan("j1", context_key, "best", make_plan(measured=False))
    with pytest.raises(StoreError, match="role is 'winner'; use one of best, front, lossless"):
        store.save_plan("j1", context_key, "winner", make_plan())  # type: ignore[arg-type]


def test_best_plan_is_the_best_that_meets_every_filter(store: Store, context_key: str) -> None:
    server = store.save_context(
        make_context(
            "f2", architecture="a2", purpose="throughput", device={"name": "gpu", "runtime": "compile"}
        )
    )
    store.create_job(make_job("j3", workload="mnist"))
    ids = {
        name: store.save_plan(job, key, "front", make_plan(name, speedup=s, plan_bytes=b, drop=d))
        for name, job, key, s, b, d in [
            ("fast", "j1", context_key, 3.0, 900, 0.1),
            ("small", "j1", context_key, 1.5, 200, 0.05),
            ("exact", "j1", context_key, 1.2, 1000, 0.0),
            ("served", "j3", server, 9.0, 500, 0.2),
        ]
    }

    def best(**filters: object) -> str | None:
        found = store.best_plan(**filters)  # type: ignore[arg-type]
        return next((name for name, plan_id in ids.items() if found and plan_id == found.id), None)

    assert best() == "served"
    assert best(objective="latency") == "fast"
    assert best(objective="throughput") == "served"
    assert best(objective="memory") == "small"
    assert best(objective="latency", max_quality_drop=0.05) == "small"
    assert best(objective="latency", max_quality_drop=0.049) == "exact"
    assert best(max_quality_drop=-0.1) is None
    assert best(max_bytes=499) == "small"
    assert best(fingerprint="f1") == "fast"
    assert best(architecture="a2", fingerprint="f1") is None
    assert best(architecture="a1", workload="minilm", device_name="cpu-1", runtime="eager") == "fast"
    assert best(device_name="gpu", runtime="compile", workload="mnist") == "served"
    assert best(threads=2, metric="accuracy", shapes=["int64 1x16"]) == "served"
    assert best(threads=3) is best(metric="cosine") is best(shapes=[]) is None
    assert best(role="best") is None
    store.save_plan("j1", context_key, "best", make_plan("chosen", speedup=2.0))
    found = store.best_plan(role="best")
    assert found is not None and found.role == "best" and found.speedup == 2.0
    with pytest.raises(StoreError, match="objective is 'speed'"):
        best(objective="speed")


def test_policy_comes_back(store: Store) -> None:
    weights = save({"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
    meta = {"formats": ["fp32"], "hidden": 64}
    first = store.save_policy("p", meta, weights)
    assert store.save_policy("p", meta, weights) == first
    second = store.save_policy("q", meta, save({}))
    assert [policy.id for policy in store.policies()] == [second, first]
    assert [policy.id for policy in store.policies(name="p", limit=5)] == [first]
    found = store.policy(first)
    assert (found.name, found.meta, found.weights) == ("p", meta, weights)
    assert load(found.weights)["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_policies_are_forgotten_by_name(store: Store) -> None:
    kept = store.save_policy("p", {}, save({}))
    store.save_policy("q", {}, save({}))
    store.save_policy("q", {"x": 1}, save({}))
    store.forget_policies("q")
    store.forget_policies("q")
    assert [policy.id for policy in store.policies()] == [kept]


def test_policy_must_be_safetensors(store: Store) -> None:
    good = save({"w": np.zeros(4, np.float32)})
    pickled = b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94."
    for bad in (b"", pickled, good[:-1], good + b"x", good[:8], b"\xff" * 64, b"PK\x03\x04" + bytes(100)):
        with pytest.raises(StoreError, match="'p' are not a safetensors file"):
            store.save_policy("p", {}, bad)
    assert store.policies() == []


def test_device_profiles_come_back_and_are_kept_once(store: Store) -> None:
    assert store.device_profiles() == []
    first = make_device_profile()
    later = make_device_profile(measured_at=datetime(2026, 2, 1, tzinfo=UTC))
    other = make_device_profile("NVIDIA B200")
    ids = [store.save_device_profile(item) for item in (later, first, other)]
    assert [new for _, new in ids] == [True, True, True]
    assert store.save_device_profile(first) == (ids[1][0], False)
    assert [found.profile for found in store.device_profiles()] == [later, other, first]
    assert [found.id for found in store.device_profiles(device_name="NVIDIA H200")] == [ids[0][0], ids[1][0]]
    assert store.device_profiles(device_name="none") == []
    assert store.prune(older_than=datetime.now(UTC) + timedelta(days=1)) == 0
    assert len(store.device_profiles()) == 3


def _keys(store: Store, job_id: str) -> list[str]:
    return [run.plan_key for run in store.job_runs(job_id)]


def test_prune_by_age(store: Store, context_key: str) -> None:
    day = datetime(2026, 1, 1, tzinfo=UTC)
    for n in range(4):
        store.finish_run("j1", context_key, make_run(f"p{n}", measured_at=day + timedelta(days=n)))
    plan = make_plan()
    store.save_plan("j1", context_key, "best", plan)
    store.finish_run("j1", context_key, make_run(plan.key, measured_at=day))
    store.attach_run("j2", context_key, "p0", searcher="rl")
    store.finish_run("j2", context_key, make_run("p9", measured_at=day))
    limit = day + timedelta(days=2)
    assert store.prune(older_than=limit) == 0, "neither job has finished"
    store.update_job("j1", state="finished")
    assert store.prune(older_than=limit) == 1
    assert _keys(store, "j1") == ["p0", "p2", "p3", plan.key], "p0 is j2's too, the last is behind a plan"
    assert _keys(store, "j2") == ["p0", "p9"]
    store.update_job("j2", state="finished")
    assert store.prune(older_than=limit) == 2
    assert _keys(store, "j1") == ["p2", "p3", plan.key]
    assert _keys(store, "j2") == []
    assert len(store.plans()) == 1


def test_prune_by_age_takes_jobs_left_alone_as_given_up(store: Store, context_key: str) -> None:
    store.finish_run("j1", context_key, make_run())
    store.save_profile(context_key, "k", {})
    assert store.prune(older_than=datetime.now(UTC) - timedelta(seconds=60)) == 0
    assert store.load_profile(context_key, "k") == {}
    assert store.prune(older_than=datetime.now(UTC) + timedelta(seconds=60)) == 1
    assert store.load_profile(context_key, "k") is None


def test_prune_by_version(store: Store, context_key: str) -> None:
    new = store.save_context(make_context(device={"versions": {"torch": "2.14.0"}}))
    day = datetime(2026, 1, 1, tzinfo=UTC)
    for key, plan_key in itertools.product((context_key, new), ("p1", "p2")):
        store.finish_run("j1", key, make_run(plan_key, measured_at=day + timedelta(days=plan_key == "p2")))
        store.save_profile(key, "k", {})
    for number in (1, 2):
        store.update_job(f"j{number}", state="finished")
    assert store.prune(version=("torch", "2.12.0")) == 0
    assert store.prune(version=("numpy", "2.13.0")) == 0
    assert store.prune(version=("torch", "2.13.0"), older_than=day) == 0
    assert store.prune(version=("torch", "2.13.0"), older_than=day + timedelta(hours=1)) == 1
    assert store.prune(version=("torch", "2.13.0")) == 1
    assert store.find_run(context_key, "p2") is None
    assert store.load_profile(context_key, "k") is None
    assert store.find_run(new, "p1") is not None
    assert store.load_profile(new, "k") == {}
    assert store.context(context_key) == make_context()
    with pytest.raises(StoreError, match="needs older_than or version"):
        store.prune()


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_kept_as_they_are(store: Store, name: str) -> None:
    context = make_context(workload=name, fingerprint=name, shapes=(name,), device={"versions": {name: name}})
    key = store.save_context(context)
    assert store.context(key) == context
    job = make_job(name, workload=name, settings={name: name}, settings_key=name, phase=name, message=name)
    store.create_job(job)
    assert store.job(name) == job
    assert store.jobs(workload=name) == [job]
    assert store.resumable_job(name) == job
    store.update_job(name, context_key=key)
    run = make_run(name, formats=(name,), reason=name, searcher=name, reported={name: 1.0})
    assert store.begin_run(name, key, name, fresh=False) == 0
    store.finish_run(name, key, run)
    assert store.job_runs(name) == [run]
    assert store.find_run(key, name) == run
    store.save_profile(key, name, {name: name})
    assert store.load_profile(key, name) == {name: name}
    store.save_plan(name, key, "best", make_plan())
    assert store.best_plan(fingerprint=name, workload=name) is not None
    assert store.policy(store.save_policy(name, {name: name}, save({}))).name == name
    # Of devices, names are one line: they are printed, and a terminal obeys control characters.
    if 0 < len(name) <= 200 and not any(unicodedata.category(letter) == "Cc" for letter in name):
        profile = make_device_profile(name, method=name)
        store.save_device_profile(profile)
        assert [found.profile for found in store.device_profiles(device_name=name)] == [profile]
    assert store.prune(version=(name, "other")) == 0


@pytest.mark.parametrize("name", ["a\x00b", "\ud800"])
def test_name_that_no_database_keeps_is_refused(store: Store, context_key: str, name: str) -> None:
    for call in (
        lambda: store.jobs(workload=name),
        lambda: store.job(name),
        lambda: store.load_profile(context_key, name),
        lambda: store.save_profile(context_key, name, {}),
        lambda: store.save_policy(name, {}, save({})),
        lambda: store.begin_run("j1", context_key, name, fresh=False),
        lambda: store.best_plan(device_name=name),
    ):
        with pytest.raises(StoreError, match="use another name"):
            call()


def test_run_is_kept_whatever_its_reason_says(store: Store, context_key: str) -> None:
    store.finish_run("j1", context_key, make_run(status="failed", reason="bad \x00 byte"))
    assert store.job_runs("j1")[0].reason == "bad \u2400 byte"
    store.update_job("j1", message="\x00\ud800", phase="\x00")
    assert (store.job("j1").message, store.job("j1").phase) == ("\u2400?", "\u2400")


finite = st.floats(allow_nan=False, allow_infinity=False)
# A name holds neither NUL nor half a surrogate pair; everything else that Unicode has.
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30)
runs = st.builds(
    Run,
    plan_key=names,
    formats=st.lists(st.text(max_size=20), max_size=5).map(tuple),
    status=st.sampled_from(["ok", "failed"]),
    reason=st.none() | names,
    split=st.sampled_from(["search", "final"]),
    fresh=st.booleans(),
    searcher=names,
    baseline_seconds=st.none() | finite,
    plan_seconds=st.none() | finite,
    speedup=st.none() | finite,
    speedup_low=st.none() | finite,
    speedup_high=st.none() | finite,
    over_lossless=st.none() | finite,
    over_lossless_low=st.none() | finite,
    over_lossless_high=st.none() | finite,
    pairs=st.integers(0, 2**63 - 1),
    held_bytes=st.none() | st.integers(0, 2**63 - 1),
    quality=st.none() | finite,
    quality_drop=st.none() | finite,
    reported=st.dictionaries(st.text(max_size=10), finite, max_size=3),
    wall_seconds=finite,
    measured_at=st.datetimes(
        datetime(1970, 1, 2),
        datetime(2200, 1, 1),
        timezones=st.sampled_from(
            [UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=11))]
        ),
    ),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=runs)
def test_every_run_comes_back_as_it_went_in(store: Store, run: Run) -> None:
    key = store.save_context(make_context())
    job = make_job(f"j-{run.measured_at.timestamp()}-{hash(run.model_dump_json())}")
    store.create_job(job)
    store.finish_run(job.id, key, run)
    assert store.job_runs(job.id) == [run]


def test_time_without_a_zone_is_taken_as_utc(store: Store, context_key: str) -> None:
    store.finish_run("j1", context_key, make_run(measured_at=datetime(2026, 1, 1)))
    assert store.job_runs("j1")[0].measured_at == datetime(2026, 1, 1, tzinfo=UTC)


def test_records_are_frozen(store: Store, context_key: str) -> None:
    with pytest.raises(ValidationError):
        store.job("j1").state = "finished"  # type: ignore[misc]


def test_threads_lose_and_double_nothing(store: Store, context_key: str) -> None:
    def work(thread: int) -> None:
        for number in range(12):
            assert store.begin_run("j1", context_key, f"{thread}-{number}", fresh=False) == 0
            store.finish_run("j1", context_key, make_run(f"{thread}-{number}"))
            assert store.find_run(context_key, f"{thread}-{number}") is not None

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    keys = _keys(store, "j1")
    assert sorted(keys) == sorted(f"{thread}-{number}" for thread in range(8) for number in range(12))


def test_closed_store_says_so(store: Store) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.jobs()
