"""What a memory plan saves in a real process.

Tunes for memory, then loads the model in two fresh processes, with and without the plan, and compares the
memory that each process really holds (unshared resident pages, after a run) with the bytes counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from autoprec.api import tune
from benchmarks.common import save, table

CASES = (("minilm", "0.005", "60"), ("smollm2", "0.02", "40"), ("gpt-small", "0.02", "60"))


def main(*names: str) -> None:
    """Measure the workloads named, or all, and print."""
    rows = [run_case(*case) for case in CASES if not names or case[0] in names]
    table("Memory", rows)
    save("memory", rows)


def run_case(workload: str, max_quality_drop: str, budget: str) -> dict[str, Any]:
    """Tune one workload for memory and weigh the processes."""
    with tempfile.TemporaryDirectory() as folder:
        result = tune(
            workload,
            objective="memory",
            max_quality_drop=max_quality_drop,
            budget=budget,
            store=str(Path(folder) / "store.db"),
            out=folder,
        )
        plan = result.best or result.lossless
        evidence = plan.evidence
        assert evidence is not None
        before = _process(workload, "")
        after = _process(workload, str(Path(folder) / "plan.json"))
    return {
        "workload": workload,
        "drop": round(evidence.quality.drop, 5),
        "limit": max_quality_drop,
        "counted MB before": round(evidence.baseline_bytes / 1e6, 1),
        "counted MB after": round(evidence.plan_bytes / 1e6, 1),
        "times smaller": round(evidence.baseline_bytes / evidence.plan_bytes, 2),
        "process MB before": round(before / 1e6, 1),
        "process MB after": round(after / 1e6, 1),
        "saved, counted MB": round((evidence.baseline_bytes - evidence.plan_bytes) / 1e6, 1),
        "saved, process MB": round((before - after) / 1e6, 1),
        "speedup": f"{evidence.speedup.value:.2f}x",
    }


def _process(workload: str, plan: str) -> int:
    """Return the bytes that the model adds to a fresh process."""
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory_child", workload, plan],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return int(json.loads(child.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
