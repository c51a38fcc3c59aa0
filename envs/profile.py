"""The profile: what each unit × format costs and loses, from a few instrumented passes.

Every implementation that the registry has is tried in place, in the running model; for each unit and format
the fastest (or smallest, for a memory goal) is chosen. No plan is searched here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from autoprec.envs.accelerator import free_cache
from autoprec.envs.baseline import BaselineFigures, observe_baseline
from autoprec.envs.features import unit_features
from autoprec.envs.measure import Measurer
from autoprec.envs.passes import KernelFigures, kernel_pass
from autoprec.envs.plans import plan_of
from autoprec.envs.space import FORMAT_NAMES, Assignment, Objective, Profile
from autoprec.envs.units import Discovery, TunableModule, Unit
from autoprec.kernels.calibration import Calibrations, needed_by
from autoprec.kernels.registry import (
    Implementation,
    Level,
    Memo,
    Support,
    feasible,
    held_bytes,
    implementation,
    implementations,
    worst,
)
from autoprec.plan import EAGER, Plan

KEEP_MARGIN = 0.03
"""A kernel must save this share of a module's time to replace it in its own format: less is noise."""
LATE = "the time budget ended before it was profiled"
"""Why a guard leaves out a pass for which there is no time."""
REFINING = "refined"
"""First word of a pass without which there is a rougher figure."""
JUDGED_BATCHES = 4
"""Batches on which local errors are judged, beyond which only examples are: each costs one run of the
baseline for every kernel."""


@dataclass(frozen=True)
class Profiled:
    """The profile and what plans are made from.

    Attributes:
        profile: The arrays that searchers see.
        calibrations: What calibration told of the input of each module path.
        runtime: What was profiled.
    """

    profile: Profile
    calibrations: dict[str, Calibrations]
    runtime: str = EAGER

    def plan(self, discovery: Discovery, architecture: str, assignment: Assignment) -> Plan:
        """Return the plan of an assignment, with the implementations that were found best."""
        return plan_of(discovery, architecture, self.profile, assignment, self.calibrations, self.runtime)


@dataclass(frozen=True)
class _Tried:
    """One kernel of one module with its figures."""

    kernel: Implementation
    level: Level
    figures: KernelFigures


def profile_workload(
    measurer: Measurer,
    discovery: Discovery,
    objective: Objective,
    calibration: Sequence[Any] = (),
    formats: Sequence[str] = FORMAT_NAMES,
    progress: Callable[[str, float], None] = lambda what, share: None,
    guard: Callable[[str], AbstractContextManager[str]] = lambda what: nullcontext(""),
    seen: BaselineFigures | None = None,
) -> Profiled:
    """Profile the workload's units.

    Args:
        measurer: The workload, its pristine model and examples.
        discovery: The units.
        objective: Decides between implementations: fastest, or smallest for `memory`.
        calibration: Batches for input ranges and local errors; the examples are used as well.
        formats: Formats to try; fp32 and each unit's own are always tried.
        progress: Called with what is being profiled and the share that is done.
        guard: Entered around the pass of each kernel with a name for it; where it gives a reason, the pass
            is left out and its kernels are refused for that reason.
        seen: What watching the model as it came told, where that was done before.
    """
    run, model = measurer.loaded.run, measurer.model
    examples = [(example.inputs, example.weight) for example in measurer.examples]
    batches = [*(inputs for inputs, _ in examples), *calibration]
    progress("inputs", 0.0)
    seen = seen or observe_baseline(measurer, discovery.modules, batches)

    wanted = [name for name in FORMAT_NAMES if name in {*formats, "fp32"}]
    tried = _untouched(model, discovery, seen.shares)
    refusals: dict[tuple[str, str], Support] = {}
    passes = _passes(model, discovery, wanted, refusals)
    for index, (name, level, chosen) in enumerate(passes):
        progress(name, (index + 1) / (len(passes) + 1))
        # Implementations of one format have one numerics: after the first they only have to run.
        first = all((path, name) not in tried for path in chosen)
        judged = batches[: max(JUDGED_BATCHES if first else 0, len(examples))]
        timed = level is Level.NATIVE
        with guard(f"{name} {index}") as reason:
            if reason:
                found = {path: KernelFigures(refused=reason) for path in chosen}
            else:
                found = kernel_pass(
                    run, model, discovery, chosen, seen.calibrations, examples, judged, timed=timed
                )
                free_cache(measurer.device)
        for path, kernel in chosen.items():
            if found[path].refused:
                refusals.setdefault((path, name), Support(Level.REFUSED, found[path].refused))
            else:
                tried.setdefault((path, name), []).append(_Tried(kernel, level, found[path]))
    _pool_equal_shapes(tried, discovery.modules)
    return Profiled(_assemble(measurer, discovery, objective, tried, refusals, seen), seen.calibrations)


def _untouched(
    model: nn.Module, discovery: Discovery, shares: dict[str, float]
) -> dict[tuple[str, str], list[_Tried]]:
    """Return the figures of every module as it came: nothing to convert, nothing lost."""
    tried = {}
    for unit in discovery.units:
        for module in unit.modules:
            kernel = implementation(module.operation, unit.baseline, "aten")
            figures = KernelFigures(shares[module.path], held_bytes(model.get_submodule(module.path)), 0.0)
            tried[module.path, unit.baseline] = [_Tried(kernel, Level.NATIVE, figures)]
    return tried


def _passes(
    model: nn.Module,
    discovery: Discovery,
    formats: Sequence[str],
    refusals: dict[tuple[str, str], Support],
) -> list[tuple[str, Level, dict[str, Implementation]]]:
    """Return what to try together: the i-th implementation of one format in every module that has one."""
    grouped: dict[tuple[str, Level, int], dict[str, Implementation]] = {}
    for unit in discovery.units:
        for module in unit.modules:
            weight = model.get_submodule(module.path).weight
            assert isinstance(weight, torch.Tensor)
            possible = feasible(module.operation, module.shapes, weight.device)
            for name in formats:
                if possible[name].level is Level.REFUSED:
                    refusals[module.path, name] = possible[name]
                    continue
                kernels = [
                    kernel
                    for kernel in implementations(module.operation, name)
                    if (name, kernel.name) != (unit.baseline, "aten")
                    and worst(kernel.support(shape, weight.device) for shape in module.shapes).level
                    is possible[name].level
                ]
                for index, kernel in enumerate(kernels):
                    grouped.setdefault((name, possible[name].level, index), {})[module.path] = kernel
    # Where time runs out, every format has been tried in one implementation before any in two.
    ordered = sorted(grouped.items(), key=lambda entry: entry[0][2])
    return [(name, level, chosen) for (name, level, _), chosen in ordered]


def _pool_equal_shapes(tried: dict[tuple[str, str], list[_Tried]], modules: Sequence[TunableModule]) -> None:
    """Give modules of equal shape the median of their times for each kernel: the rest is noise."""
    kind = {m.path: (m.operation, m.shapes, m.calls) for m in modules}
    together: dict[tuple[object, ...], list[KernelFigures]] = {}
    for (path, name), entries in tried.items():
        for entry in entries:
            together.setdefault((kind[path], name, entry.kernel.name), []).append(entry.figures)
    for figures in together.values():
        middle = median(item.seconds for item in figures)
        for item in figures:
            item.seconds = middle


def _choose(entries: Sequence[_Tried], objective: Objective, own: bool) -> _Tried:
    """Return the best kernel of one module and format; `own` says that the module has the format already."""
    native = [entry for entry in entries if entry.level is Level.NATIVE]
    if not native:
        return entries[0]
    if objective == "memory":
        return min(native, key=lambda entry: (entry.figures.bytes, entry.figures.seconds))
    best = min(native, key=lambda entry: entry.figures.seconds)
    if own and best.figures.seconds > (1 - KEEP_MARGIN) * entries[0].figures.seconds:
        return entries[0]
    return best


def _assemble(
    measurer: Measurer,
    discovery: Discovery,
    objective: Objective,
    tried: dict[tuple[str, str], list[_Tried]],
    refusals: dict[tuple[str, str], Support],
    seen: BaselineFigures,
) -> Profile:
    units, width = discovery.units, len(FORMAT_NAMES)
    time = np.full((len(units), width), np.nan)
    error = np.full((len(units), width), np.nan)
    held = np.zeros((len(units), width), dtype=np.int64)
    chosen: list[tuple[tuple[str, ...], ...]] = []
    reasons: list[tuple[str, ...]] = []
    for u, unit in enumerate(units):
        names: list[tuple[str, ...]] = []
        why: list[str] = []
        for k, name in enumerate(FORMAT_NAMES):
            missing = next((m for m in unit.modules if (m.path, name) not in tried), None)
            if missing is not None:
                names.append(())
                why.append(refusals.get((missing.path, name), Support(Level.REFUSED, "not asked for")).reason)
                continue
            best = [_choose(tried[m.path, name], objective, own=name == unit.baseline) for m in unit.modules]
            emulated = any(entry.level is Level.EMULATED for entry in best)
            names.append(tuple(entry.kernel.name for entry in best))
            why.append("emulated: no kernel of this format on this device" if emulated else "")
            if not emulated:
                time[u, k] = sum(entry.figures.seconds for entry in best)
            judged = [tried[m.path, name][0].figures.error for m in unit.modules]
            error[u, k] = float(np.sqrt(np.mean(np.square(judged))))
            held[u, k] = _unit_bytes(measurer.model, unit, best, seen.calibrations)
        chosen.append(tuple(names))
        reasons.append(tuple(why))
    own = [FORMAT_NAMES.index(unit.baseline) for unit in units]
    features = unit_features(
        measurer.model,
        units,
        seen.statistics,
        [sum(seen.shares[m.path] for m in unit.modules) for unit in units],
        [float(held[u, k]) / max(1, measurer.baseline_bytes) for u, k in enumerate(own)],
    )
    return Profile(
        time, held, error, features, tuple(chosen), seen.seconds, measurer.baseline_bytes, tuple(reasons)
    )


def _unit_bytes(
    model: nn.Module, unit: Unit, best: Sequence[_Tried], calibrations: dict[str, Calibrations]
) -> int:
    if not unit.tied:
        return sum(entry.figures.bytes for entry in best)
    # Tied modules may or may not share what they were converted to: convert them together and count.
    memo: Memo = {}
    together = nn.ModuleList()
    for module, entry in zip(unit.modules, best, strict=True):
        needed = needed_by(entry.kernel.format, module.path, calibrations)
        together.append(entry.kernel.convert(model.get_submodule(module.path), needed, memo))
    return held_bytes(together)
