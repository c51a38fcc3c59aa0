"""AutoPrec's side: what a peer chose on our kernels, and what AutoPrec chooses itself."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoprec.api import tune
from autoprec.envs.measure import FRESH_TIMING
from autoprec.envs.plans import plan_of
from autoprec.envs.profile import Profiled, profile_workload
from autoprec.envs.space import FORMAT_NAMES
from autoprec.errors import CandidateError
from autoprec.plan import EAGER, Plan
from autoprec.prepare import Prepared, prepare
from benchmarks.peers.choices import Ratio, map_choices
from benchmarks.peers.counting import load_counted


@dataclass(frozen=True)
class Tuned:
    """What one job of AutoPrec came to.

    Attributes:
        title: Its budget and runtime.
        plan: Its best plan, or its lossless one where none keeps the limit.
        evaluations: Judgements of a whole model during the search, that as it came included.
        final: Judgements on the held-out data, by which it picks between its winners.
        seconds: Of the whole job.
    """

    title: str
    plan: Plan
    evaluations: int
    final: int
    seconds: float


class OurKernels:
    """Measures plans of one workload in this process, all in the same way."""

    def __init__(self, place: str) -> None:
        self._prepared: Prepared = prepare(place, "latency")
        self._profiled: Profiled = profile_workload(
            self._prepared.measurer, self._prepared.discovery, "latency", self._prepared.calibration
        )

    def plan_of(self, choices: Mapping[str, str]) -> tuple[Plan, list[str]]:
        """Return the plan that runs a peer's choices, and what was lost on the way."""
        profile, discovery = self._profiled.profile, self._prepared.discovery
        order = {unit.name: index for index, unit in enumerate(discovery.units)}

        def native(unit: str, name: str) -> bool:
            return bool(profile.implementations[order[unit]][FORMAT_NAMES.index(name)]) and bool(
                profile.time[order[unit], FORMAT_NAMES.index(name)] >= 0
            )

        units = {unit.name: [module.path for module in unit.modules] for unit in discovery.units}
        formats, notes = map_choices(choices, units, native)
        assignment = tuple(FORMAT_NAMES.index(formats[unit.name]) for unit in discovery.units)
        made = plan_of(
            discovery, self._prepared.context.architecture, profile, assignment, self._profiled.calibrations
        )
        return made, notes

    def measure(self, plan: Plan, beside: Plan | None = None) -> dict[str, Any]:
        """Return a plan's speed against the model as it came and its drop, on held-out data.

        Args:
            plan: What to run.
            beside: Also time it against this plan.
        """
        for each in (plan, beside):
            if each is not None:
                self._prepared.use_runtime(each.runtime)
        measurer = self._prepared.measurer
        try:
            found = measurer.measure(plan, measurer.splits[-1], FRESH_TIMING, reference=beside)
        except CandidateError as error:
            return {"failed": str(error)}
        assert found.timing is not None
        over = found.over_reference
        return {
            "speed": _ratio(found.timing).model_dump(),
            "over": None if over is None else _ratio(over).model_dump(),
            "milliseconds": 1e3 * found.timing.b_seconds,
            "drop": found.quality_drop,
            "formats": plan.formats,
            "runtime": plan.runtime,
        }


def tuned(place: str, limit: float, budget: int, runtime: str = EAGER) -> Tuned:
    """Let AutoPrec search with a budget of measured runs, in a store of its own."""
    workload = load_counted(place)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = tune(
            workload,
            max_quality_drop=limit,
            budget=budget,
            runtime=runtime,
            store=str(Path(folder) / "store.db"),
        )
    return Tuned(
        f"AutoPrec, {budget} runs, {runtime}",
        result.best or result.lossless,
        workload.judged["search"],
        workload.judged["final"],
        time.perf_counter() - started,
    )


def _ratio(found: Any) -> Ratio:
    return Ratio(value=found.ratio, low=found.low, high=found.high)
