"""Measure every plan of the small CNN once and record the landscape that the searcher tests replay.

Fidelity to the fp32 outputs is the quality, four formats are allowed, and every plan of the space is
measured: `python -m benchmarks.record_landscape`. Takes about ten minutes on two quiet cores.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from rich.progress import track

from autoprec.envs.landscape import Landscape
from autoprec.envs.plans import plan_of
from autoprec.envs.profile import profile_workload
from autoprec.envs.search_space import search_space
from autoprec.envs.space import Goal, Trial
from autoprec.envs.timing import TimingSettings
from autoprec.execute import RunRequest, execute
from autoprec.prepare import prepare

WORKLOAD = "mnist-cnn-fidelity"
FORMATS = ("fp32", "fp16", "int8_dynamic", "int8_static")
MAX_QUALITY_DROP = 0.004
TIMING = TimingSettings(target=0.015, max_seconds=0.35)
TARGET = Path(__file__).parent.parent / "tests" / "assets" / "mnist_cnn_landscape.json.gz"


def main() -> None:
    """Record."""
    prepared = prepare(WORKLOAD, "latency")
    goal = Goal("latency", MAX_QUALITY_DROP)
    profiled = profile_workload(prepared.measurer, prepared.discovery, "latency", prepared.calibration)
    space = search_space(prepared.discovery, profiled.profile, goal, FORMATS, drop_dominated=False)
    plans = list(itertools.product(*(space.choices(unit) for unit in range(len(space.units)))))
    trials = []
    for assignment in track(plans, f"measuring {len(plans)} plans"):
        plan = plan_of(
            prepared.discovery,
            prepared.context.architecture,
            profiled.profile,
            assignment,
            profiled.calibrations,
        )
        run = execute(prepared.measurer, RunRequest(plan, "recorded", "search", TIMING))
        ok = run.status == "ok"
        figures = (run.speedup, run.held_bytes, run.quality_drop)
        speedup, held, drop = (float("nan") if value is None else float(value) for value in figures)
        trials.append(Trial(assignment, ok, 1 / speedup, held, drop, "recorded"))
    landscape = Landscape(WORKLOAD, space, profiled.profile, tuple(trials), True, goal.max_quality_drop)
    TARGET.parent.mkdir(exist_ok=True)
    path = landscape.save(TARGET)
    best = landscape.optimum(goal)
    found = f"best {1 / best.time:.3f}x at a drop of {best.drop:.5f}" if best else "no plan meets the limit"
    sys.stdout.write(f"{len(trials)} plans in {path.name}, {found}\n")


if __name__ == "__main__":
    main()
