"""Stores of every earlier schema, with rows in every table: nothing of them is lost on the way up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from safetensors.numpy import save
from sqlalchemy import Engine, MetaData, Table, insert
from store_samples import make_context, make_device_profile, make_job, make_plan, make_run

from autoprec.plan import Plan
from autoprec.store.engine import make_engine, resolve
from autoprec.store.schema import alembic_config, head_revision
from autoprec.store.store import Store

EARLIER = [
    script.revision
    for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()
    if script.revision != head_revision()
]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_server").create_database())
    return str(tmp_path / "store.db")


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    made = make_engine(resolve(url))
    yield made
    made.dispose()


def fill(url: str, folder: Path) -> dict[str, list[dict[str, object]]]:
    """Return the rows of each table as the present schema has them, made by the store itself."""
    path = str(folder / "present.db")
    with Store.open(path) as store:
        key = store.save_context(make_context())
        store.create_job(make_job("j1", context_key=key, state="finished"))
        store.create_job(make_job("j2", context_key=key, message="out of memory"))
        store.finish_run("j1", key, make_run("p1", over_lossless=None))
        store.finish_run("j1", key, make_run("p2", status="failed", reason="naïve ☃", reported={}))
        store.attach_run("j2", key, "p1", searcher="rl")
        store.begin_run("j2", key, "p3", fresh=False)
        store.save_profile(key, "k", {"time": [1.5, None]})
        store.save_plan("j1", key, "best", make_plan())
        store.save_plan("j1", key, "front", make_plan(speedup=3.0, plan_bytes=2000, drop=0.2))
        store.save_policy("p", {"hidden": 64}, save({}))
        store.save_device_profile(make_device_profile())
    present, tables = make_engine(resolve(path)), MetaData()
    tables.reflect(present)
    with present.connect() as connection:
        rows = {
            table.name: [dict(row) for row in connection.execute(table.select()).mappings()]
            for table in tables.sorted_tables
        }
    present.dispose()
    return rows


@pytest.mark.parametrize("revision", EARLIER)
def test_nothing_is_lost_from_any_earlier_schema(
    url: str, engine: Engine, revision: str, tmp_path: Path
) -> None:
    rows, config, key = fill(url, tmp_path), alembic_config(), make_context().key
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        for name, kept in rows.items():
            if not engine.dialect.has_table(connection, name) or name == "autoprec_version":
                continue
            table = Table(name, MetaData(), autoload_with=connection)
            for row in kept:  # what that schema had a column for
                connection.execute(insert(table), {c.name: row[c.name] for c in table.columns})
        counted = {"job_runs": "id", "plans": "id", "policies": "id", "runs": "id", "device_profiles": "id"}
        if engine.dialect.name == "postgresql":  # rows with numbers of their own leave the counter behind
            for name, column in counted.items():
                if engine.dialect.has_table(connection, name):
                    connection.exec_driver_sql(
                        f"SELECT setval(pg_get_serial_sequence('{name}', '{column}'), 100)"
                    )
    with Store.open(url) as store:
        assert store.context(key) == make_context()
        jobs = {job.id: job for job in store.jobs()}
        assert (jobs["j1"].state, jobs["j2"].message) == ("finished", "out of memory")
        assert (jobs["j1"].owner, jobs["j1"].progress, store.job_age("j1")) == (None, {}, None)
        first, second = store.job_runs("j1")
        assert (first.plan_key, first.speedup, second.reason) == ("p1", 2.0, "naïve ☃")
        assert [(run.plan_key, run.searcher, run.cached) for run in store.job_runs("j2")] == [
            ("p1", "rl", True)
        ]
        assert store.begin_run("j2", key, "p3", fresh=False) == 1
        assert store.load_profile(key, "k") == {"time": [1.5, None]}
        assert [Plan.from_json(plan.plan) for plan in store.plans()] == [
            make_plan(speedup=3.0, plan_bytes=2000, drop=0.2), make_plan(),
        ]  # fmt: skip
        best = store.best_plan(
            architecture="a1", metric="accuracy", shapes=make_context().shapes, workload="minilm",
            objective="latency", max_quality_drop=0.1,
        )  # fmt: skip
        assert best is not None and (best.speedup, best.state) == (2.0, "candidate")
        assert store.plan_events(best.id) == []
        assert store.set_plan_state(best.id, "deployed", who="ada").state == "deployed"
        assert [policy.meta for policy in store.policies()] == (
            [{"hidden": 64}] if revision >= "0002" else []
        )
        assert len(store.device_profiles()) == (revision >= "0005")
        # What is new works on what is old.
        assert store.take_job("j2", "a", 60) and store.claim_run("j2", key, "p4", seconds=60)
        store.finish_run("j2", key, make_run("p4"))
        assert json.loads(store.plan(store.save_plan("j2", key, "best", make_plan(speedup=5.0))).plan)
        assert store.check()["runs"] == 3
