"""The profile of a runtime that compiles a whole graph: what each unit × format changes there.

Nothing can be timed inside such a graph without changing it, so units of one kind (operation and shapes)
change format together in the running graph, and share the difference. Local errors come from the formats'
references: they are the same numerics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from autoprec.envs.baseline import observe_baseline
from autoprec.envs.features import unit_features
from autoprec.envs.measure import Measurer, relative_error
from autoprec.envs.passes import judge_modules
from autoprec.envs.plans import make_plan
from autoprec.envs.profile import JUDGED_BATCHES, Profiled
from autoprec.envs.space import FORMAT_NAMES, Profile
from autoprec.envs.timing import TimingSettings
from autoprec.envs.units import Discovery, Unit
from autoprec.errors import CandidateError, RuntimeRefusedError
from autoprec.kernels import reference
from autoprec.kernels.calibration import Calibrations
from autoprec.kernels.registry import Level, Operation, held_bytes
from autoprec.plan import Plan
from autoprec.runtimes.graph_runtime import GraphRuntime
from autoprec.runtimes.runtime import Executable

TIMING = TimingSettings(target=0.01, max_seconds=0.6, min_pairs=6)
SMALLEST_TIME = 1e-5
"""Relative time below which a unit's time is not believed to fall: differences of noise can be negative."""


def profile_graph(
    measurer: Measurer,
    discovery: Discovery,
    runtime: GraphRuntime,
    architecture: str,
    calibration: Sequence[Any] = (),
    progress: Callable[[str, float], None] = lambda what, share: None,
    guard: Callable[[str], AbstractContextManager[str]] = lambda what: nullcontext(""),
) -> Profiled:
    """Profile the workload's units in a graph runtime.

    Args:
        measurer: The workload, its pristine model and examples.
        discovery: The units.
        runtime: The runtime; `measurer` knows it.
        architecture: Fingerprint of the model's structure.
        calibration: See `autoprec.envs.profile.profile_workload`, as for what follows.
        progress: The same.
        guard: The same.

    Raises:
        RuntimeRefusedError: The runtime cannot run the model.
    """
    model, units = measurer.model, discovery.units
    batches = [*(example.inputs for example in measurer.examples), *calibration]
    modules = [module for unit in units for module in unit.modules]
    progress("export", 0.0)
    missing = runtime.prepare()
    seen = observe_baseline(measurer, modules, batches)

    width = len(FORMAT_NAMES)
    own = [FORMAT_NAMES.index(unit.baseline) for unit in units]
    time, error = np.full((len(units), width), np.nan), np.full((len(units), width), np.nan)
    held = np.zeros((len(units), width), dtype=np.int64)
    reasons = [[""] * width for _ in units]
    possible: dict[str, dict[tuple[object, ...], list[int]]] = {}
    for u, unit in enumerate(units):
        for k, name in enumerate(FORMAT_NAMES):
            refused = _refusal(runtime, unit, name, missing) if k != own[u] else ""
            reasons[u][k] = refused
            if not refused and k != own[u]:
                kind = tuple((m.operation, m.shapes, m.calls) for m in unit.modules)
                possible.setdefault(name, {}).setdefault(kind, []).append(u)

    def plan(name: str, chosen: Sequence[int]) -> Plan:
        formats = [name if u in chosen else unit.baseline for u, unit in enumerate(units)]
        names = [[runtime.name] * len(unit.modules) for unit in units]
        return make_plan(discovery, architecture, formats, names, seen.calibrations, runtime.name)

    with _whole_model(measurer, plan("", ())) as base:
        whole = 1 / measurer.time(None, base, TIMING).ratio
        for u, unit in enumerate(units):
            time[u, own[u]] = max(SMALLEST_TIME, whole * sum(seen.shares[m.path] for m in unit.modules))
            error[u, own[u]] = 0.0
            held[u, own[u]] = held_bytes(nn.ModuleList(model.get_submodule(m.path) for m in unit.modules))
        tries = [(name, chosen) for name, kinds in possible.items() for chosen in kinds.values()]
        for index, (name, chosen) in enumerate(tries):
            progress(name, (index + 1) / (len(tries) + 1))
            k = FORMAT_NAMES.index(name)
            with guard(f"{runtime.name} {name} {units[chosen[0]].name}") as refused:
                reason = refused
                if not reason:
                    try:
                        with measurer.executable(plan(name, chosen)) as candidate:
                            change = 1 / measurer.time(base, candidate, TIMING).ratio - 1
                            freed = base.held_bytes() - candidate.held_bytes()
                    except CandidateError as failure:
                        reason = str(failure)
            for u in chosen:
                reasons[u][k] = reason
                if not reason:
                    time[u, k] = max(SMALLEST_TIME, time[u, own[u]] + whole * change / len(chosen))
                    held[u, k] = held[u, own[u]] - freed // len(chosen)
    judged = batches[: max(JUDGED_BATCHES, len(measurer.examples))]
    _judge(measurer, units, np.isfinite(time), seen.calibrations, judged, error)
    features = unit_features(
        model, units, seen.statistics,
        [sum(seen.shares[m.path] for m in unit.modules) for unit in units],
        [float(held[u, k]) / max(1, measurer.baseline_bytes) for u, k in enumerate(own)],
    )  # fmt: skip
    names = tuple(
        tuple((runtime.name,) * len(unit.modules) if np.isfinite(time[u, k]) else () for k in range(width))
        for u, unit in enumerate(units)
    )
    profile = Profile(
        time, held, error, features, names, seen.seconds, measurer.baseline_bytes, tuple(map(tuple, reasons))
    )
    return Profiled(profile, seen.calibrations, runtime.name)


@contextmanager
def _whole_model(measurer: Measurer, plan: Plan) -> Iterator[Executable]:
    """Build the plan of which all others are changes; without it the runtime is of no use."""
    with ExitStack() as stack:
        try:
            base = stack.enter_context(measurer.executable(plan))
        except CandidateError as error:
            raise RuntimeRefusedError(f"{plan.runtime} does not run the model as it came: {error}") from error
        yield base


def _refusal(runtime: GraphRuntime, unit: Unit, name: str, missing: dict[str, str]) -> str:
    for module in unit.modules:
        if module.path in missing:
            return missing[module.path]
        support = runtime.support(module.operation, name)
        if support.level is not Level.NATIVE:
            return support.reason
    if unit.tied:
        return f"{runtime.name}: the weights of this unit are tied, and would be held twice"
    return ""


def _judge(
    measurer: Measurer,
    units: Sequence[Unit],
    wanted: Any,
    calibrations: dict[str, Calibrations],
    batches: Sequence[Any],
    error: Any,
) -> None:
    """Fill in the local error of every unit × format, from one pass over the batches."""
    place = {module.path: u for u, unit in enumerate(units) for module in unit.modules}
    operations = {module.path: module.operation for unit in units for module in unit.modules}
    sums: dict[tuple[int, int], list[float]] = {}

    def see(path: str, module: nn.Module, value: torch.Tensor, output: torch.Tensor) -> None:
        u = place[path]
        for k in np.flatnonzero(wanted[u]):
            if error[u, k] == 0.0:
                continue
            name = FORMAT_NAMES[k]
            known = calibrations.get(path)
            needed = None if known is None else known.of(name)
            if operations[path] is Operation.EMBEDDING:
                found = reference.embedding(name, value, module.weight)  # type: ignore[arg-type]
            elif operations[path] is Operation.CONV2D:
                found = reference.conv2d(name, value, module, needed)  # type: ignore[arg-type]
            else:
                weight, bias = module.weight, module.bias
                found = reference.linear(name, value, weight, bias, needed)  # type: ignore[arg-type]
            sums.setdefault((u, int(k)), []).append(relative_error(found, output))

    judge_modules(
        measurer.loaded.run, measurer.model, [m for unit in units for m in unit.modules], batches, see
    )
    for (u, k), found in sums.items():
        error[u, k] = float(np.sqrt(np.mean(np.square(found))))
