"""How quick a full store answers: `python -m benchmarks.store [--runs N] [--sqlite-runs N] [--plans N]`.

Fills a private PostgreSQL and a SQLite file, times what the service asks most, prints which indexes the
queries use, and lets many processes write at once. Figures go to `benchmarks/results/store.json`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Engine, insert, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from autoprec.store.engine import make_engine, resolve
from autoprec.store.models import PlanRow
from autoprec.store.plans import shapes_key
from autoprec.store.store import Store
from benchmarks.common import save

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from postgres import PostgresServer, find_binaries
from store_samples import make_context, make_job, make_plan, make_run

CONTEXTS, JOBS = 200, 1000
REPEATS = 200


def main() -> None:
    """Fill, time, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1_000_000, help="measured runs in PostgreSQL")
    parser.add_argument("--sqlite-runs", type=int, default=100_000, help="the same in SQLite")
    parser.add_argument("--plans", type=int, default=10_000)
    given = parser.parse_args()
    with postgres() as server, tempfile.TemporaryDirectory() as folder:
        found = {
            "postgresql": measure(server.create_database(), given.runs, given.plans, 32),
            "sqlite": measure(f"{folder}/store.db", given.sqlite_runs, given.plans, 8),
        }
    save("store", found)


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    """Start a private server with its usual safety: what is committed is on the disk."""
    binaries = find_binaries()
    if binaries is None:
        sys.exit("PostgreSQL's binaries are not installed: Debian's package postgresql has them")
    with tempfile.TemporaryDirectory() as folder:
        server = PostgresServer(binaries, Path(folder), options="-c fsync=on -c shared_buffers=128MB")
        try:
            yield server
        finally:
            server.stop()


def measure(url: str, runs: int, plans: int, writers: int) -> dict[str, Any]:
    """Return the figures of one backend, in milliseconds."""
    with Store.open(url) as store:
        engine = make_engine(resolve(url))
        started = time.perf_counter()
        contexts = fill(store, engine, runs, plans)
        seconds = time.perf_counter() - started
        print(f"{engine.dialect.name}: {runs} runs, {plans} plans, filled in {seconds:.0f} s")
        context, shapes = contexts[7], ("int64 1x16",)
        wanted = {
            "architecture": "a7", "metric": "accuracy", "shapes": shapes, "device_name": "cpu-1",
            "threads": 2, "runtime": "eager", "objective": "latency", "max_quality_drop": 0.02,
        }  # fmt: skip
        serial = iter(range(10**9))

        def begin() -> None:
            store.begin_run("j5", context, f"begun-{next(serial)}", fresh=False)

        def record() -> None:
            store.finish_run("j5", context, make_run(f"new-{next(serial)}"))

        def begin_and_record() -> None:
            run = make_run(f"both-{next(serial)}")
            store.begin_run("j5", context, run.plan_key, fresh=False)
            store.finish_run("j5", context, run)

        figures: dict[str, Any] = {
            "runs": runs,
            "plans": plans,
            "best_plan": timed(lambda: store.best_plan(**wanted)),
            "best_plan_memory": timed(lambda: store.best_plan(**(wanted | {"objective": "memory"}))),
            "page_of_plans": timed(lambda: store.plans(limit=100, before=plans // 2)),
            "page_of_plans_of_a_workload": timed(lambda: store.plans(workload="w7", limit=100)),
            "page_of_jobs": timed(lambda: store.jobs(limit=100, state="finished")),
            "page_of_runs": timed(lambda: store.job_runs("j5", offset=500, limit=100)),
            "find_run": timed(lambda: store.find_run(context, "p4007")),
            "begin_a_run": timed(begin),
            "record_a_run": timed(record),
            "begin_and_record_a_run": timed(begin_and_record),
            "indexes": explained(engine, context),
        }
        for name, value in figures.items():
            print(f"  {name}: {value}")
        engine.dispose()
    figures["writers"] = write_at_once(url, context, writers)
    print(f"  writers: {figures['writers']}")
    return figures


def timed(body: Callable[[], object]) -> dict[str, float]:
    """Return the median and the 95th percentile of a call, in milliseconds, after some to warm up."""
    seconds = []
    for number in range(REPEATS + 10):
        started = time.perf_counter()
        body()
        if number >= 10:
            seconds.append(time.perf_counter() - started)
    return {
        "median_ms": round(1e3 * float(np.median(seconds)), 3),
        "p95_ms": round(1e3 * float(np.percentile(seconds, 95)), 3),
    }


def fill(store: Store, engine: Engine, runs: int, plans: int) -> list[str]:
    """Put contexts, jobs, runs and plans in; return the keys of the contexts."""
    contexts = [
        store.save_context(make_context(f"f{n}", architecture=f"a{n % 50}", workload=f"w{n % 50}"))
        for n in range(CONTEXTS)
    ]
    for number in range(JOBS):
        store.create_job(make_job(f"j{number}", state="finished", workload=f"w{number % 50}"))
    numbers = (
        f"SELECT generate_series(0, {runs - 1}) AS n"
        if engine.dialect.name == "postgresql"
        else "WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c "  # noqa: S608  (a number)
        f"WHERE n < {runs - 1}) SELECT n FROM c"
    )
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO runs (digest, context_key, plan_key, formats, status, split, fresh, searcher,"  # noqa: S608
                " baseline_seconds, plan_seconds, speedup, speedup_low, speedup_high, pairs, held_bytes,"
                " quality, quality_drop, quality_share, reported, wall_seconds, measured_at)"
                " SELECT 'd' || n, contexts.key, 'p' || n, '[\"fp32\"]', 'ok', 'search', false, 'rl',"
                " 0.1, 0.05, 1.5, 1.4, 1.6, 20, 1000000, 0.9, 0.01, 1.0, '{}', 2.5, '2026-01-01 00:00:00'"
                f" FROM ({numbers}) AS s JOIN contexts ON contexts.fingerprint = 'f' || (n % {CONTEXTS})"
            )
        )
        connection.execute(
            text(
                "INSERT INTO job_runs (job_id, run_id, searcher, cached)"  # noqa: S608  (a constant)
                f" SELECT 'j' || (id % {JOBS}), id, 'rl', false FROM runs"
            )
        )
        connection.execute(text("ANALYZE"))
    rng = np.random.default_rng(0)
    plan = make_plan()
    big = plan.model_copy(
        update={"units": tuple(plan.units[0].model_copy(update={"name": f"unit.{n}"}) for n in range(80))}
    ).to_json()
    rows = []
    for number in range(plans):
        n = int(rng.integers(CONTEXTS))
        rows.append(
            {
                "digest": f"plan{number}", "job_id": f"j{number % JOBS}", "context_key": contexts[n],
                "plan_key": f"k{number}", "role": ("best", "front", "lossless")[number % 3], "plan": big,
                "speedup": float(rng.uniform(0.8, 4)), "plan_bytes": int(rng.integers(1e6, 1e9)),
                "quality_drop": float(rng.uniform(0, 0.05)), "created_at": make_run().measured_at,
                "state": "candidate", "workload": f"w{n % 50}", "fingerprint": f"f{n}",
                "architecture": f"a{n % 50}", "device_name": "cpu-1", "runtime": "eager", "threads": 2,
                "purpose": "latency", "objective": "latency", "metric": "accuracy",
                "shapes_key": shapes_key(("int64 1x16",)),
            }
        )  # fmt: skip
    with Session(engine) as session, session.begin():
        for start in range(0, plans, 500):
            session.execute(insert(PlanRow), rows[start : start + 500])
        session.execute(text("ANALYZE"))
    return contexts


def explained(engine: Engine, context: str) -> dict[str, str]:
    """Return how the database answers the two queries that matter most; exits where it scans a table."""
    best = (
        "SELECT id FROM plans WHERE state != 'retired' AND architecture = 'a7' AND device_name = 'cpu-1'"
        " AND quality_drop <= 0.02 ORDER BY speedup DESC, quality_drop, id DESC LIMIT 1"
    )
    run = (
        f"SELECT id FROM runs WHERE context_key = '{context}' AND plan_key = 'p4007' AND split = 'search'"  # noqa: S608
        " AND fresh = false ORDER BY measured_at DESC LIMIT 1"
    )
    found = {}
    for name, query in {"best_plan": best, "find_run": run}.items():
        word = "EXPLAIN" if engine.dialect.name == postgresql.dialect.name else "EXPLAIN QUERY PLAN"
        assert engine.dialect.name in (postgresql.dialect.name, sqlite.dialect.name)
        with engine.connect() as connection:
            lines = [str(row[-1]).strip() for row in connection.execute(text(f"{word} {query}"))]
        used = [line for line in lines if "ix_" in line]
        if not used:
            sys.exit(f"{name} uses no index: {lines}")
        found[name] = used[0]
    return found


def write_at_once(url: str, context: str, writers: int) -> dict[str, Any]:
    """Let many processes record runs; return how long each took, and what was lost or doubled."""
    each = 50
    spawn = multiprocessing.get_context("spawn")
    with Store.open(url) as store:
        for number in range(writers):
            store.create_job(make_job(f"writer-{number}"))
    started = time.perf_counter()
    processes = [spawn.Process(target=_write, args=(url, context, n, each)) for n in range(writers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - started
    with Store.open(url) as store:
        kept = [run.plan_key for n in range(writers) for run in store.job_runs(f"writer-{n}")]
    return {
        "processes": writers,
        "runs": writers * each,
        "lost": writers * each - len(set(kept)),
        "doubled": len(kept) - len(set(kept)),
        "failed_processes": sum(process.exitcode != 0 for process in processes),
        "seconds_with_starting": round(seconds, 1),
    }


def _write(url: str, context: str, writer: int, count: int) -> None:
    with Store.open(url) as store:
        for number in range(count):
            run = make_run(f"w{writer}-{number}")
            store.begin_run(f"writer-{writer}", context, run.plan_key, fresh=False)
            store.finish_run(f"writer-{writer}", context, run)


if __name__ == "__main__":
    main()
