"""Everything that a store holds, moved into another of either kind."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from safetensors.torch import save
from sqlalchemy import text
from store_samples import make_context, make_device_profile, make_job, make_plan, make_run
from torch import ones

from autoprec.errors import StoreError
from autoprec.store.engine import make_engine, resolve
from autoprec.store.store import Store


@pytest.fixture
def urls(tmp_path: Path, postgres_server) -> dict[str, str]:
    return {"sqlite": str(tmp_path / "a.db"), "postgresql": str(postgres_server.create_database())}


def fill(store: Store) -> None:
    key = store.save_context(make_context())
    store.save_profile(key, "k", {"time": [1.5, None]})
    for name in ("j1", "j2"):
        store.create_job(make_job(name, owner="ada@here", idempotency_key=name))
    for name in ("p1", "p2", "p3"):
        store.finish_run("j1", key, make_run(name, reason="odd \u2603 \x00 name" if name == "p2" else None))
    store.attach_run("j2", key, "p2", searcher="rl")
    store.save_plan("j1", key, "front", make_plan(speedup=1.2))
    best = store.save_plan("j1", key, "best", make_plan())
    store.set_plan_state(best, "deployed", who="ada", note="go")
    store.save_policy("job:j1", {"kind": "x"}, save({"w": ones(3)}))
    store.save_device_profile(make_device_profile())
    store.create_token("ci", "read")
    store.audit("job", "j1", who="ada", what="submitted")


def content(store: Store) -> dict[str, object]:
    key = make_context().key
    return {
        "context": store.context(key),
        "profile": store.load_profile(key, "k"),
        "jobs": [job.model_copy(update={"heartbeat_at": None}) for job in store.jobs()],
        "runs": [store.job_runs(name) for name in ("j1", "j2")],
        "plans": [plan.model_copy(update={"id": 0}) for plan in store.plans()],
        "policies": [(policy.name, policy.meta, policy.weights) for policy in store.policies()],
        "devices": [found.profile for found in store.device_profiles()],
        "trail": [[(e.who, e.what, e.after, e.note) for e in store.plan_events(p.id)] for p in store.plans()],
    }


@pytest.mark.parametrize(("here", "there"), [("sqlite", "postgresql"), ("postgresql", "sqlite")])
def test_what_is_moved_is_the_same(urls, tmp_path, here, there):
    file = tmp_path / "store.jsonl.gz"
    with Store.open(urls[here]) as source, Store.open(urls[there]) as target:
        fill(source)
        # Numbers that are taken there already are no reason to mix things up.
        key = target.save_context(make_context("other"))
        target.create_job(make_job("theirs"))
        target.finish_run("theirs", key, make_run("q"))
        taken = target.save_plan("theirs", key, "best", make_plan(speedup=9.0))
        target.set_plan_state(taken, "verified", who="bob")
        counts = source.export_to(file)
        assert (counts["runs"], counts["job_runs"], counts["plans"]) == (3, 4, 2)
        assert "tokens" not in counts and "ap_" not in gzip.decompress(file.read_bytes()).decode()
        for _ in range(2):  # the second time changes nothing
            assert target.import_from(file) == counts
            moved = content(target)
            moved["jobs"] = [job for job in moved["jobs"] if job.id != "theirs"]
            moved["plans"] = [plan for plan in moved["plans"] if plan.job_id != "theirs"]
            moved["trail"] = [trail for trail in moved["trail"] if trail[0][0] != "job theirs"]
            assert moved == content(source)
        assert target.check()["runs"] == 4 and target.tokens() == []


def test_a_damaged_file_is_refused_and_nothing_of_it_is_kept(tmp_path):
    file, broken = tmp_path / "store.jsonl.gz", tmp_path / "broken.gz"
    with Store.open(str(tmp_path / "a.db")) as source:
        fill(source)
        source.export_to(file)
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()

    def write(changed: list[str]) -> None:
        with gzip.open(broken, "wt") as target:
            target.write("\n".join(changed) + "\n")

    def row(number: int, **changes: object) -> list[str]:
        told = json.loads(lines[number])
        told["row"] |= changes
        return [*lines[:number], json.dumps(told), *lines[number + 1 :]]

    run = next(n for n, line in enumerate(lines) if '"table":"runs"' in line)
    link = next(n for n, line in enumerate(lines) if '"table":"job_runs"' in line)
    policy = next(n for n, line in enumerate(lines) if '"table":"policies"' in line)
    with Store.open(str(tmp_path / "b.db")) as target:
        for changed, words in (
            (row(run, speedup="fast"), rf"damaged near line {run + 1} .*speedup is 'fast'"),
            (row(run, extra=1), "other columns than it should"),
            (row(run, measured_at="yesterday"), f"near line {run + 1}"),
            (row(link, run="none"), "refers to 1 rows that it does not hold"),
            (row(policy, weights="AAAA"), "not a safetensors file"),
            ([*lines[:-1], lines[-1][:-9]], f"near line {len(lines)}"),
            ([*lines, '{"table": "tokens", "row": {}}'], "KeyError"),
            ([*lines, lines[run]], "rows of runs come too late"),
            ([line.replace("0006", "0099") for line in lines], "schema '0099'"),
            (["{}"], "no export of a store"),
        ):
            write(changed)
            with pytest.raises(StoreError, match=words):
                target.import_from(broken)
        broken.write_bytes(file.read_bytes()[:-40])
        with pytest.raises(StoreError, match="damaged"):
            target.import_from(broken)
        broken.write_text("plain text")
        with pytest.raises(StoreError, match="no gzip file"):
            target.import_from(broken)
        with pytest.raises(StoreError, match="cannot read"):
            target.import_from(tmp_path / "absent")
        assert set(target.check().values()) == {0}
        target.import_from(file)


def test_an_export_that_cannot_be_written_leaves_nothing(tmp_path):
    with Store.open(str(tmp_path / "a.db")) as source, pytest.raises(StoreError, match="cannot write"):
        source.export_to(tmp_path / "no" / "such.gz")


def test_rows_that_refer_to_nothing_are_found(tmp_path):
    path = str(tmp_path / "a.db")
    with Store.open(path) as store:
        fill(store)
        engine = make_engine(resolve(path))
        with engine.connect() as connection:
            connection.connection.driver_connection.execute("PRAGMA foreign_keys=OFF")
            connection.execute(text("DELETE FROM contexts"))
            connection.commit()
        engine.dispose()
        with pytest.raises(StoreError, match="rows refer to what is not there"):
            store.check()
