"""The profile of a runtime that compiles a whole graph: what each unit × format changes there.

Nothing can be timed inside such a graph without changing it, so units change format together in the running
graph, all at once and then those of one kind (operation and shapes), and share the difference. Local errors
come from the formats' references: they are the same numerics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from autoprec.comparing import refuse_difference, relative_error
from autoprec.envs.baseline import BaselineFigures, observe_baseline
from autoprec.envs.features import unit_features
from autoprec.envs.measure import Measurer
from autoprec.envs.passes import judge_modules
from autoprec.envs.plans import make_plan
from autoprec.envs.profile import JUDGED_BATCHES, LATE, REFINING, Profiled
from autoprec.envs.space import FORMAT_NAMES, Objective, Profile
from autoprec.envs.timing import TimingSettings
from autoprec.envs.units import Discovery, Unit
from autoprec.errors import CandidateError, RuntimeRefusedError
from autoprec.kernels import reference
from autoprec.kernels.calibration import Calibrations, needed_by
from autoprec.kernels.formats import FORMATS
from autoprec.kernels.registry import Level, Operation, held_bytes
from autoprec.plan import Plan
from autoprec.runtimes.graph_runtime import GraphRuntime
from autoprec.runtimes.runtime import Executable
from autoprec.workload import iter_tensors

TIMING = TimingSettings(target=0.01, max_seconds=0.6, fewest_pairs=2, min_pairs=6)
SMALLEST_TIME = 1e-5
"""Relative time below which a unit's time is not believed to fall: differences of noise can be negative."""
SMALL = 0.01
"""Share of a run below which units of one kind are not measured on their own."""
TOO_SLOW = 1.25
"""A format that makes the whole graph this much slower is left out, but where memory is what counts."""


def profile_graph(
    measurer: Measurer,
    discovery: Discovery,
    runtime: GraphRuntime,
    architecture: str,
    objective: Objective,
    calibration: Sequence[Any] = (),
    progress: Callable[[str, float], None] = lambda what, share: None,
    guard: Callable[[str], AbstractContextManager[str]] = lambda what: nullcontext(""),
    seen: BaselineFigures | None = None,
) -> Profiled:
    """Profile the workload's units in a graph runtime.

    Args:
        measurer: The workload, its pristine model and examples.
        discovery: The units.
        runtime: The runtime; `measurer` knows it.
        architecture: Fingerprint of the model's structure.
        objective: What plans are searched for.
        calibration: See `autoprec.envs.profile.profile_workload`, as for what follows.
        progress: The same.
        guard: The same.
        seen: The same.

    Raises:
        RuntimeRefusedError: The runtime cannot run the model.
    """
    units = discovery.units
    batches = [*(example.inputs for example in measurer.examples), *calibration]
    progress("export", 0.0)
    missing = runtime.prepare()
    found = seen or observe_baseline(measurer, discovery.modules, batches)

    def plan(name: str, chosen: Sequence[int]) -> Plan:
        formats = [name if u in chosen else unit.baseline for u, unit in enumerate(units)]
        names = [[runtime.name] * len(unit.modules) for unit in units]
        return make_plan(discovery, architecture, formats, names, found.calibrations, runtime.name)

    with _whole_model(measurer, plan("", ())) as base:
        table = _Table(measurer, units, found.shares, base)
        kinds = table.possible(runtime, missing)
        for index, (name, units_of) in enumerate(kinds.items()):
            progress(name, index / len(kinds))
            with guard(f"{runtime.name} {name}") as refused:
                change = refused or table.compare(plan(name, [u for chosen in units_of for u in chosen]))
            table.roughly(name, units_of, change, keep_slow=objective == "memory")

        def compare(name: str, chosen: Sequence[int]) -> _Change | str:
            progress(f"{name} by kind", 1.0)
            with guard(f"{REFINING} {runtime.name} {name} from {units[chosen[0]].name}") as refused:
                return refused or table.compare(plan(name, chosen))

        table.refine(kinds, compare)
        table.smooth(kinds)
    judged = batches[: max(JUDGED_BATCHES, len(measurer.examples))]
    _judge(measurer, discovery, np.isfinite(table.time), found.calibrations, judged, table.error)
    features = unit_features(
        measurer.model, units, found.statistics,
        [sum(found.shares[m.path] for m in unit.modules) for unit in units],
        [float(table.held[u, k]) / max(1, measurer.baseline_bytes) for u, k in enumerate(table.own)],
    )  # fmt: skip
    names = tuple(
        tuple((runtime.name,) * len(unit.modules) if np.isfinite(value) else () for value in table.time[u])
        for u, unit in enumerate(units)
    )
    profile = Profile(
        table.time, table.held, table.error, features, names, found.seconds, measurer.baseline_bytes,
        tuple(map(tuple, table.reasons)),
    )  # fmt: skip
    return Profiled(profile, found.calibrations, runtime.name)


@dataclass(frozen=True)
class _Change:
    """What a candidate changes.

    Attributes:
        time: Relative to the whole model in its own formats.
        bytes: That it frees.
    """

    time: float
    bytes: int


class _Table:
    """The figures of every unit × format, filled in format by format."""

    def __init__(
        self, measurer: Measurer, units: Sequence[Unit], shares: dict[str, float], base: Executable
    ) -> None:
        self._measurer = measurer
        self._units = units
        self._base = base
        self._whole = 1 / measurer.time(None, base, TIMING).ratio
        self._together: dict[str, _Change] = {}
        self._failed: list[str] = []
        shape = len(units), len(FORMAT_NAMES)
        self.own = [FORMAT_NAMES.index(unit.baseline) for unit in units]
        self.time, self.error = np.full(shape, np.nan), np.full(shape, np.nan)
        self.held = np.zeros(shape, dtype=np.int64)
        self.reasons = [[""] * shape[1] for _ in units]
        for u, unit in enumerate(units):
            paths = [module.path for module in unit.modules]
            self.time[u, self.own[u]] = max(SMALLEST_TIME, self._whole * sum(shares[path] for path in paths))
            self.error[u, self.own[u]] = 0.0
            modules = nn.ModuleList(measurer.model.get_submodule(path) for path in paths)
            self.held[u, self.own[u]] = held_bytes(modules)

    def possible(self, runtime: GraphRuntime, missing: dict[str, str]) -> dict[str, list[list[int]]]:
        """Return format to units by kind, the most promising first, and note why others cannot have it."""
        found: dict[str, dict[tuple[object, ...], list[int]]] = {}
        for u, unit in enumerate(self._units):
            for k, name in enumerate(FORMAT_NAMES):
                if k == self.own[u]:
                    continue
                self.reasons[u][k] = _refusal(runtime, unit, name, missing)
                if not self.reasons[u][k]:
                    kind = tuple((m.operation, m.shapes, m.calls) for m in unit.modules)
                    found.setdefault(name, {}).setdefault(kind, []).append(u)
        # Time may end before all are tried: 8 bits serve most models, fewer lose and more gain little.
        names = sorted(found, key=lambda name: abs(FORMATS[name].bits - 8))
        return {name: list(found[name].values()) for name in names}

    def compare(self, plan: Plan) -> _Change | str:
        """Return what a plan changes, or why it does not run."""
        try:
            with self._measurer.executable(plan) as candidate:
                ratio = self._measurer.time(self._base, candidate, TIMING).ratio
                return _Change(1 / ratio - 1, self._base.held_bytes() - candidate.held_bytes())
        except CandidateError as failure:
            return str(failure)

    def roughly(
        self, name: str, kinds: Sequence[list[int]], change: _Change | str, *, keep_slow: bool
    ) -> None:
        """Fill in a format from what changes where all of its units take it: each has its part of that."""
        everything = [u for chosen in kinds for u in chosen]
        if isinstance(change, str):
            self._refuse(name, everything, change)
            if change != LATE and len(kinds) > 1:
                self._failed.append(name)
        elif change.time > TOO_SLOW - 1 and not keep_slow:
            slower = f"the whole model is {1 + change.time:.2f} times slower in it than in its own formats"
            self._refuse(name, everything, slower)
        else:
            self._together[name] = change
            for chosen in kinds:
                self._add(name, chosen, self._part(change, chosen, everything))

    def refine(
        self, kinds: dict[str, list[list[int]]], compare: Callable[[str, Sequence[int]], _Change | str]
    ) -> None:
        """Measure kind by kind, the most promising formats first, as long as there is time."""
        plain = [name for name in self._together if not FORMATS[name].smooth and len(kinds[name]) > 1]
        for name in [*self._failed, *sorted(plain, key=lambda name: self._together[name].time)]:
            for chosen in kinds[name]:
                if self._weight(chosen) < SMALL and name not in self._failed:
                    continue
                change = compare(name, chosen)
                if change == LATE:
                    return
                if isinstance(change, str):
                    self._refuse(name, chosen, change)
                else:
                    self._add(name, chosen, change)

    def smooth(self, kinds: dict[str, list[list[int]]]) -> None:
        """Fill in formats that smooth from those that do not: what it adds is small and alike everywhere."""
        for name, together in self._together.items():
            plain = FORMATS[name].unsmoothed
            if plain != name and plain in self._together:
                timed = np.isfinite(self.time[:, FORMAT_NAMES.index(plain)])
                everything = [u for chosen in kinds[name] for u in chosen if timed[u]]
                added = _Change(together.time - self._together[plain].time, together.bytes)
                self._add(name, everything, added, plain)

    def _weight(self, chosen: Sequence[int]) -> float:
        """Return the share of units in the time of a run."""
        return float(sum(self.time[u, self.own[u]] for u in chosen)) / self._whole

    def _part(self, change: _Change, chosen: Sequence[int], everything: Sequence[int]) -> _Change:
        """Return the part of some units in a change of all, by their time and their bytes."""
        time = self._weight(chosen) / max(self._weight(everything), SMALLEST_TIME)
        held, whole = (sum(int(self.held[u, self.own[u]]) for u in units) for units in (chosen, everything))
        return _Change(change.time * time, change.bytes * held // max(1, whole))

    def _add(self, name: str, chosen: Sequence[int], change: _Change, start: str = "") -> None:
        k = FORMAT_NAMES.index(name)
        for u in chosen:
            before = FORMAT_NAMES.index(start) if start else self.own[u]
            time = self.time[u, before] + self._whole * change.time / len(chosen)
            self.time[u, k] = max(SMALLEST_TIME, time)
            if start:
                self.held[u, k] = self.held[u, before]
            else:
                self.held[u, k] = self.held[u, before] - change.bytes // len(chosen)

    def _refuse(self, name: str, chosen: Sequence[int], reason: str) -> None:
        for u in chosen:
            self.reasons[u][FORMAT_NAMES.index(name)] = reason


@contextmanager
def _whole_model(measurer: Measurer, plan: Plan) -> Iterator[Executable]:
    """Build the plan of which all others are changes; without it the runtime is of no use.

    Its outputs are compared with those of the model as it came once more: what the graph was compared with
    was watched, and watched, torch does not fuse, which leaves padding at zero.
    """
    with ExitStack() as stack:
        try:
            base = stack.enter_context(measurer.executable(plan))
        except CandidateError as error:
            raise RuntimeRefusedError(f"{plan.runtime} does not run the model as it came: {error}") from error
        found, expected = (
            iter_tensors(measurer.run_examples(model)) for model in (base.model, measurer.model)
        )
        refuse_difference(found, expected, "before any quantisation")
        yield base


def _refusal(runtime: GraphRuntime, unit: Unit, name: str, missing: dict[str, str]) -> str:
    for module in unit.modules:
        if module.path in missing:
            return missing[module.path]
        support = runtime.support(module.operation, name)
        if support.level is not Level.NATIVE:
            return support.reason
    return ""


def _judge(
    measurer: Measurer,
    discovery: Discovery,
    wanted: Any,
    calibrations: dict[str, Calibrations],
    batches: Sequence[Any],
    error: Any,
) -> None:
    """Fill in the local error of every unit × format, from one pass over the batches."""
    place = {module.path: u for u, unit in enumerate(discovery.units) for module in unit.modules}
    operations = {module.path: module.operation for module in discovery.modules}
    sums: dict[tuple[int, int], list[float]] = {}

    def see(path: str, module: nn.Module, value: torch.Tensor, output: torch.Tensor) -> None:
        u = place[path]
        for k in np.flatnonzero(wanted[u]):
            if error[u, k] == 0.0:
                continue
            name = FORMAT_NAMES[k]
            needed = needed_by(name, path, calibrations)
            if operations[path] is Operation.EMBEDDING:
                found = reference.embedding(name, value, module.weight)  # type: ignore[arg-type]
            elif operations[path] is Operation.CONV2D:
                found = reference.conv2d(name, value, module, needed)  # type: ignore[arg-type]
            else:
                weight, bias = module.weight, module.bias
                found = reference.linear(name, value, weight, bias, needed)  # type: ignore[arg-type]
            sums.setdefault((u, int(k)), []).append(relative_error(found, output))

    judge_modules(measurer.loaded.run, measurer.model, discovery.modules, batches, see)
    for (u, k), found in sums.items():
        error[u, k] = float(np.sqrt(np.mean(np.square(found))))
