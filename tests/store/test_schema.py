"""The schema: what the migrations make, and which databases are refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, inspect, text
from store_samples import make_context, make_job, make_plan, make_run

from autoprec.errors import StoreError
from autoprec.store.engine import make_engine, resolve
from autoprec.store.models import Base
from autoprec.store.schema import VERSION_TABLE, alembic_config
from autoprec.store.store import Store


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


def _migrate(engine: Engine, revision: str, *, down: bool = False) -> None:
    config = alembic_config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        (command.downgrade if down else command.upgrade)(config, revision)


def test_migrations_make_what_the_models_say(url: str, engine: Engine) -> None:
    Store.open(url).close()
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_server_default": True}
        )
        assert compare_metadata(context, Base.metadata) == []


def test_constraints_have_the_names_that_the_models_give_them(url: str, engine: Engine) -> None:
    Store.open(url).close()
    found = inspect(engine)
    for table in Base.metadata.sorted_tables:
        # SQLite does not name the primary key of a table that counts up.
        named = {constraint.name for constraint in table.constraints - {table.primary_key}}
        named |= {index.name for index in table.indexes}
        real = {key["name"] for key in found.get_foreign_keys(table.name)}
        real |= {key["name"] for key in found.get_unique_constraints(table.name)}
        real |= {index["name"] for index in found.get_indexes(table.name)}
        assert real == named


def test_migrations_go_down_to_nothing(engine: Engine) -> None:
    _migrate(engine, "head")
    _migrate(engine, "base", down=True)
    assert inspect(engine).get_table_names() == [VERSION_TABLE]


def test_older_schema_is_refused_or_brought_up_to_date(url: str, engine: Engine) -> None:
    _migrate(engine, "0001")
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO jobs (id, workload, settings, settings_key, state, phase, elapsed_seconds,"
                " created_at, updated_at) VALUES ('old', 'minilm', '{}', 's', 'running', '', 1,"
                " '2026-01-01 00:00:00.000000', '2026-01-01 00:00:00.000000')"
            )
        )
    with pytest.raises(StoreError, match=r"has the older schema '0001'.* open it once with .*upgrade=True"):
        Store.open(url, upgrade=False)
    assert "policies" not in inspect(engine).get_table_names()
    with Store.open(url) as store:
        assert store.job("old").elapsed_seconds == 1
        assert store.policies() == []
    with Store.open(url, upgrade=False) as store:
        key = store.save_context(make_context())
        store.finish_run("old", key, make_run())


def test_runs_from_before_slices_were_judged_on_all_of_the_data(url: str, engine: Engine) -> None:
    _migrate(engine, "0003")
    key, moment = make_context().key, "2026-01-01 00:00:00.000000"
    with engine.begin() as connection:
        for table, columns, values in (
            ("contexts", "key, workload, fingerprint, architecture, purpose, shapes, device_name,"
             " device_capability, runtime, threads, versions, created_at",
             f"'{key}', 'w', 'f', 'a', 'latency', '[]', 'd', 'c', 'eager', 1, '{{}}', '{moment}'"),
            ("runs", "digest, context_key, plan_key, formats, status, split, fresh, searcher, pairs,"
             " reported, quality_drop, wall_seconds, measured_at",
             f"'d', '{key}', 'p', '[]', 'ok', 'search', false, 'rl', 6, '{{}}', 0.5, 1, '{moment}'"),
            ("jobs", "id, workload, settings, settings_key, state, phase, elapsed_seconds, created_at,"
             " updated_at",
             f"'old', 'w', '{{}}', 's', 'finished', '', 1, '{moment}', '{moment}'"),
            ("job_runs", "job_id, run_id, searcher, cached", "'old', (SELECT id FROM runs), 'rl', false"),
        ):  # fmt: skip
            connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({values})"))
    with Store.open(url) as store:
        found = store.find_run(key, "p")
        assert found is not None
        assert (found.quality_drop, found.quality_share, found.slice_drop) == (0.5, 1.0, None)
        # A table that is made anew must not take with it what refers to its rows.
        assert [run.plan_key for run in store.job_runs("old")] == ["p"]
        with pytest.raises(StoreError):  # foreign keys are checked again
            store.finish_run("nobody", key, make_run())


@pytest.mark.parametrize("upgrade", [True, False])
def test_newer_schema_is_refused(url: str, engine: Engine, upgrade: bool) -> None:
    Store.open(url).close()
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(StoreError, match=r"was written by a newer AutoPrec .*'9999'.*update AutoPrec"):
        Store.open(url, upgrade=upgrade)


def test_somebody_elses_database_is_refused_and_left_alone(url: str, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE experiments (id INTEGER)"))
        connection.execute(text("CREATE TABLE alembic_version (version_num TEXT)"))
    with pytest.raises(StoreError, match=r"holds tables of something else \(alembic_version, experiments\)"):
        Store.open(url)
    assert set(inspect(engine).get_table_names()) == {"experiments", "alembic_version"}
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            assert connection.scalar(text("PRAGMA journal_mode")) == "delete"


def test_failed_migration_leaves_nothing_behind(url: str, engine: Engine) -> None:
    _migrate(engine, "0001")
    with engine.begin() as connection:
        # The second migration stumbles over it.
        connection.execute(text("CREATE TABLE policies (id INTEGER)"))
    with pytest.raises(StoreError, match=r"policies.* already exists"):
        Store.open(url)
    with engine.begin() as connection:
        assert connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}")) == "0001"
        connection.execute(text("DROP TABLE policies"))
    Store.open(url).close()


def test_postgres_schema_of_its_own_in_a_shared_database(postgres_server) -> None:
    url = postgres_server.create_database()
    engine = make_engine(resolve(url))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE jobs (theirs INTEGER)"))
        connection.execute(text("CREATE SCHEMA mine"))
    with Store.open(url + "?options=-csearch_path%3Dmine") as store:
        store.create_job(make_job())
        assert len(store.jobs()) == 1
    assert inspect(engine).get_table_names() == ["jobs"]
    assert VERSION_TABLE in inspect(engine).get_table_names(schema="mine")
    engine.dispose()


def test_sqlite_file_has_the_settings_that_the_store_counts_on(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with Store.open(str(path)):
        pass
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    engine = make_engine(resolve(str(path)))
    with engine.connect() as connection:
        assert connection.scalar(text("PRAGMA foreign_keys")) == 1
        assert connection.scalar(text("PRAGMA synchronous")) == 1
        assert connection.scalar(text("PRAGMA busy_timeout")) == 10_000
    engine.dispose()


def test_plans_from_before_the_service_are_found_by_what_their_json_says(url: str, engine: Engine) -> None:
    _migrate(engine, "0005")
    key, moment, plan = make_context().key, "2026-01-01 00:00:00.000000", make_plan().to_json()
    with engine.begin() as connection:
        for table, columns, values in (
            ("contexts", "key, workload, fingerprint, architecture, purpose, shapes, device_name,"
             " device_capability, runtime, threads, versions, created_at",
             f"'{key}', 'w', 'f1', 'a1', 'latency', '[]', 'cpu-1', 'c', 'eager', 2, '{{}}', '{moment}'"),
            ("jobs", "id, workload, settings, settings_key, state, phase, elapsed_seconds, created_at,"
             " updated_at",
             f"'old', 'minilm', '{{}}', 's', 'finished', '', 1, '{moment}', '{moment}'"),
            ("plans", "digest, job_id, context_key, plan_key, role, plan, speedup, plan_bytes, quality_drop,"
             " created_at",
             f"'d', 'old', '{key}', 'p', 'best', :plan, 2.0, 1000, 0.01, '{moment}'"),
        ):  # fmt: skip
            given = {"plan": plan} if table == "plans" else {}
            connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({values})"), given)
    with Store.open(url) as store:
        found = store.best_plan(
            fingerprint="f1", architecture="a1", workload="minilm", device_name="cpu-1", threads=2,
            runtime="eager", metric="accuracy", shapes=("int64 1x16",), objective="latency",
        )  # fmt: skip
        assert found is not None and (found.state, found.plan) == ("candidate", plan)
        assert store.best_plan(metric="other") is None
        assert store.job("old").progress == {}
