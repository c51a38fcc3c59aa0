"""How well a Ray cluster is used: `python -m benchmarks.cluster [efficiency] [simulation] [start]`.

- `efficiency`: a workload that only waits (a device with a fixed latency), searched on one node and on two.
- `simulation`: 256 simulated devices, many to an actor, through the same pool, store and search as real ones.
- `start`: from the submission to the first measured run, on a cluster that is up.

Figures go to `benchmarks/results/cluster.json`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import save

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from cluster_nodes import RayCluster, wait_for

import autoprec
from autoprec.store.store import Store

WAITING = """
import time
import torch
from torch import nn

class Plain:
    def build_model(self):
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))

    def example_inputs(self):
        return torch.ones(1, 64)

    def quality(self, model):
        return 1.0

class Waiting(Plain):
    '''Runs for 5 ms and is judged for a second; neither needs a core.'''

    seconds = 1.0

    def run(self, model, inputs):
        time.sleep(0.005)
        return model(inputs)

    def quality(self, model):
        time.sleep(self.seconds)
        return 1.0

class Longer(Waiting):
    seconds = 3.0
"""
OPTIONS: dict[str, Any] = {
    "objective": "memory", "formats": "fp32,bf16,fp16_weight", "max_quality_drop": 0.1, "searcher": "random",
}  # fmt: skip
RUNS = 40
DEVICES, LATENCY, SIMULATED_RUNS = 256, 10.0, 2048


@contextlib.contextmanager
def workload(name: str) -> Iterator[tuple[Path, str]]:
    """Give a directory, and the workload of this name in it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "waiting.py").write_text(WAITING)
        yield Path(folder), f"{folder}/waiting.py:{name}"


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[RayCluster]:
    """Start a cluster of nodes with one CPU each."""
    made = RayCluster(cpus=1)
    before = dict(os.environ)
    try:
        for _ in range(nodes - 1):
            made.add_node()
        os.environ.update(
            {name: value for name, value in made.environment.items() if name.startswith("RAY_")}
        )
        yield made
    finally:
        os.environ.clear()
        os.environ.update(before)
        made.stop()


def efficiency() -> dict[str, Any]:
    """Return how much faster a search is with two nodes, as a share of twice; at two lengths of waiting."""
    return {name.lower(): _efficiency(name) for name in ("Waiting", "Longer")}


def _efficiency(kind: str) -> dict[str, Any]:
    seconds = {}
    for nodes in (1, 2):
        with cluster(nodes) as ray, workload(kind) as (folder, name):
            job = autoprec.submit(
                name, address=ray.address, store=f"{folder}/store.db", budget=RUNS, threads=1, **OPTIONS
            )
            assert job.wait(600) == "finished", "".join(job.logs())
            with Store.open(f"{folder}/store.db") as store:
                runs = [run for run in store.job_runs(job.id) if not run.fresh]
            # Stations come up one after the other: counted from when each has measured.
            measured = sorted(run.measured_at.timestamp() for run in runs)[4:]
            seconds[nodes] = (measured[-1] - measured[0]) / (len(measured) - 1)
    return {
        "runs": RUNS,
        "seconds_a_run_1_node": round(seconds[1], 3),
        "seconds_a_run_2_nodes": round(seconds[2], 3),
        "efficiency": round(seconds[1] / (2 * seconds[2]), 3),
    }


def start() -> dict[str, Any]:
    """Return the seconds from the submission of a job to its first measured run, three times."""
    found = []
    with cluster(1) as ray, workload("Plain") as (folder, name):
        for number in range(3):
            url = f"{folder}/store{number}.db"
            begun = time.perf_counter()
            job = autoprec.submit(name, address=ray.address, store=url, budget=2, threads=1, **OPTIONS)
            with Store.open(url) as store:
                wait_for(lambda store=store, job=job: bool(store.job_runs(job.id)), 120, "a run")
            found.append(round(time.perf_counter() - begun, 1))
            job.wait(120)
    return {"submission_to_first_run_seconds": found}


def simulation() -> dict[str, Any]:
    """Return what 256 devices cost the driver, each with a fixed latency; four actors simulate them."""
    import ray

    from autoprec.agents.random_search import RandomSearcher
    from autoprec.cluster import pool as pools
    from autoprec.cluster.options import StationOrder
    from autoprec.job_state import new_job
    from autoprec.runtime_search import JobParts, RuntimeSearch
    from autoprec.settings import TuneSettings
    from benchmarks.simulated_station import SimulatedStation

    with (
        workload("Waiting") as (folder, name),
        tempfile.TemporaryDirectory(prefix="ap-", dir="/tmp") as place,
    ):
        ray.init(
            address="local", num_cpus=DEVICES, include_dashboard=False, object_store_memory=100 * 2**20,
            logging_level="ERROR", log_to_driver=False, _temp_dir=place,
        )  # fmt: skip
        os.environ["AUTOPREC_STORE"] = f"{folder}/store.db"
        settings = TuneSettings.check(workload=name, **OPTIONS)
        with Store.open() as store:
            job = new_job(store, settings, settings.key)
            order = StationOrder(job.id, name, "latency", (), (), 0)
            hosts = [
                ray.remote(SimulatedStation)
                .options(num_cpus=0, max_concurrency=DEVICES)
                .remote(replace(order, threads=0), LATENCY, os.environ["AUTOPREC_STORE"])
                for _ in range(4)
            ]
            turn = iter(range(10**6))
            pool = pools.StationPool(
                order, gpu=False, threads=1, most=None, device=None, run_seconds=600.0, note=print,
                phase=lambda name: None, launch=lambda order, slot: hosts[next(turn) % len(hosts)],
            )  # fmt: skip
            goal, _ = settings.goal(1.0, pool.facts.baseline_bytes)
            parts = JobParts(
                job_id=job.id, settings=settings, store=store, station=pool, goal=goal, seconds=None,
                elapsed=time.perf_counter, heard=lambda trial: None, phase=lambda *told: None, note=print,
            )  # fmt: skip
            search = RuntimeSearch(parts, "eager")
            wait_for(lambda: pool.idle >= DEVICES, 120, "every simulated device")
            driver = psutil.Process()
            cpu, begun = sum(driver.cpu_times()[:2]), time.perf_counter()
            search.search(SIMULATED_RUNS, lambda: False, RandomSearcher(search.problem, 0))
            wall = time.perf_counter() - begun
            cpu = sum(driver.cpu_times()[:2]) - cpu
            measured = len(search.trials)
            pool.close()
        ray.shutdown()
    return {
        "devices": DEVICES,
        "latency_seconds": LATENCY,
        "runs": measured,
        "wall_seconds": round(wall, 2),
        "driver_cores": round(cpu / wall, 3),
        "overhead_ms_a_run": round(1e3 * (wall * DEVICES - measured * LATENCY) / measured, 1),
        "driver_ms_a_run": round(1e3 * cpu / measured, 1),
        "efficiency": round(measured * LATENCY / (wall * DEVICES), 3),
    }


def main() -> None:
    """Run what is named, or everything."""
    known = {"efficiency": efficiency, "simulation": simulation, "start": start}
    names = sys.argv[1:] or list(known)
    rows = {}
    for name in names:
        if name not in known:
            sys.exit(f"unknown benchmark {name!r}; known: {', '.join(known)}")
        rows[name] = known[name]()
        print(name, rows[name], flush=True)
    if len(rows) == len(known):
        save("cluster", rows)


if __name__ == "__main__":
    main()
