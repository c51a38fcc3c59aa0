"""One peer in its own virtual environment: searches, is judged and timed, and prints its result as JSON.

python -m benchmarks.peers.child MODULE PLACE LIMIT EVALUATIONS
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import time

import torch
from torch import nn

from autoprec.envs.measure import FRESH_TIMING
from autoprec.envs.timing import time_pairs
from benchmarks.peers.choices import PeerResult, Ratio
from benchmarks.peers.contract import Found, Task
from benchmarks.peers.counting import Counted, load_counted


def main() -> None:
    """Run the peer that the arguments name."""
    # Peers print, some of them from C: standard output is for the one document.
    document = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    name, place, limit, evaluations = sys.argv[1:]
    torch.manual_seed(0)
    peer = importlib.import_module(f"benchmarks.peers.{name}")
    workload = load_counted(place)
    task = Task(
        workload,
        workload.examples("latency")[0].inputs,
        workload.calibration() or [],
        float(limit),
        int(evaluations),
    )
    baseline = task.quality(workload.build_model())  # also what the judge makes once and keeps
    workload.judged["search"] = 0
    started = time.perf_counter()
    found: Found = peer.search(task)
    seconds = time.perf_counter() - started
    evaluations_used = workload.judged["search"]
    with torch.no_grad():
        drop = workload.quality(workload.build_model(), "final") - workload.quality(found.model, "final")
    speed, milliseconds, no_speed = _speed(workload, task, found)
    result = PeerResult(
        peer=peer.NAME,
        version=importlib.metadata.version(peer.PACKAGE),
        status="ok",
        call=peer.CALL,
        evaluations=evaluations_used,
        seconds=round(seconds, 2),
        choices=found.choices,
        beyond=found.beyond or {},
        search_drop=baseline - task.quality(found.model),
        drop=drop,
        speed=speed,
        milliseconds=milliseconds,
        executable=found.executable,
        no_speed=no_speed,
        notes=found.notes,
    )
    document.write(result.model_dump_json())
    document.close()


def _speed(workload: Counted, task: Task, found: Found) -> tuple[Ratio | None, float | None, str]:
    """Time the peer's own executable against the model as it came; or say why that was not done."""
    if found.no_speed:
        return None, None, found.no_speed
    baseline = workload.build_model()

    def run(model: nn.Module) -> object:
        with torch.inference_mode():
            return workload.run(model, task.inputs)

    try:
        fast = found.fast() if found.fast else found.model
        run(fast)
    except Exception as error:  # another tool may fail in any way
        return None, None, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    seen = time_pairs(lambda: run(baseline), lambda: run(fast), FRESH_TIMING)
    return Ratio(value=seen.ratio, low=seen.low, high=seen.high), 1e3 * seen.b_seconds, ""


if __name__ == "__main__":
    main()
