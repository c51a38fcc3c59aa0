"""Tune the ready-made workloads as a user would, each in a fresh process and store.

Prints for each case the best plan, the best lossless plan and the bound without a quality limit, all
measured fresh against the model as it came; the time and the peak memory that the command took.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import save, table


@dataclass(frozen=True)
class Case:
    """One tuning job."""

    workload: str
    objective: str
    max_quality_drop: str
    budget: str


CASES = (
    Case("minilm", "latency", "0.005", "10m"),
    Case("minilm", "throughput", "0.005", "8m"),
    Case("minilm", "memory", "0.005", "6m"),
    Case("smollm2", "latency", "0.02", "20m"),
    Case("smollm2", "memory", "0.02", "15m"),
    Case("gpt-small", "latency", "0.02", "6m"),
    Case("gpt-small", "memory", "0.02", "6m"),
    Case("mnist-cnn", "latency", "0.002", "2m"),
)


def main(*names: str) -> None:
    """Run the cases whose workload is named, or all."""
    rows = [run_case(case) for case in CASES if not names or case.workload in names]
    table("Tuning", rows)
    save("tuning" if not names else f"tuning-{'-'.join(names)}", rows)


def run_case(case: Case) -> dict[str, Any]:
    """Tune in a fresh process; return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        child = subprocess.run(
            [sys.executable, "-m", "benchmarks.tuning_child", json.dumps(case.__dict__), folder],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "AUTOPREC_STORE": str(Path(folder) / "store.db")},
        )
        wall = time.perf_counter() - started
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    return {**case.__dict__, **found, "wall s": round(wall), "largest child GB": round(peak, 2)}


if __name__ == "__main__":
    main(*sys.argv[1:])
