"""The profile of a runtime: taken from the store, or made here and kept there."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from autoprec.envs.landscape import Landscape
from autoprec.envs.profile import LATE, REFINING, Profiled, profile_workload
from autoprec.envs.search_space import search_space, unusable
from autoprec.envs.space import FORMAT_NAMES, Goal
from autoprec.errors import RuntimeRefusedError
from autoprec.kernels.calibration import calibrations_from_data, calibrations_to_data
from autoprec.kernels.registry import Level, feasible
from autoprec.plan import COMPILE, EAGER
from autoprec.prepare import Prepared
from autoprec.runtimes.available import GRAPH_RUNTIMES
from autoprec.store.records import Context
from autoprec.store.store import Store

COMPILE_SHARE = 0.01
"""Share of a budget in time that compiling for the timed inputs may take where runtimes are compared: judging
quality at other shapes then takes about twice as long again."""
MAX_ATTEMPTS = 2
"""A plan whose run was begun this often and never ended took the process down: it counts as failed."""


@dataclass(frozen=True)
class ToProfile:
    """A profile that is wanted.

    Attributes:
        runtime: What executes the model.
        goal: What is searched for.
        formats: Formats that were asked for, or `None` for all.
        seconds: Time after which no further kernel is profiled.
        budget: The job's whole budget in seconds, where this runtime is compared with others; else `None`.
        anew: Make it, whatever the store holds.
    """

    runtime: str
    goal: Goal
    formats: tuple[str, ...] | None = None
    seconds: float = math.inf
    budget: float | None = None
    anew: bool = False


class RuntimeProfiler:
    """Profiles the runtimes of one workload; each is profiled once.

    Args:
        prepared: The workload.
        store: Keeps profiles, and which pass is in flight.
        job_id: The job that asks.
        phase: Hears what is done: phase, detail, share.
        note: Hears what the user should know.
    """

    def __init__(
        self,
        prepared: Prepared,
        store: Store,
        job_id: str,
        phase: Callable[[str, str, float | None], None],
        note: Callable[[str], None],
    ) -> None:
        self._prepared = prepared
        self._store = store
        self._job_id = job_id
        self._phase = phase
        self._note = note
        self._profiles: dict[str, tuple[Profiled, list[str]]] = {}

    def profile(self, wanted: ToProfile) -> tuple[Context, Profiled, list[str]]:
        """Return what figures of a runtime hold for, its profile, and the kernels left out for time.

        Raises:
            RuntimeRefusedError: The runtime is not installed or cannot run the model.
            SettingError: A format that was asked for is native in no unit.
        """
        self._prepared.use_runtime(wanted.runtime)
        context = self._prepared.context_for(wanted.runtime)
        self._check_formats(wanted)
        profiled, late = self._kept(wanted, wanted.runtime, self._store.save_context(context))
        if late:
            self._note(
                f"{wanted.runtime}: its part of the time budget ended before {len(late)} kernels were "
                "profiled, so they are left out; give a longer budget"
            )
        return context, profiled, late

    def _check_formats(self, wanted: ToProfile) -> None:
        """Refuse formats that no unit has here before the profile, which takes much longer, tells the same.

        Raises:
            SettingError: A format that was asked for is native in no unit; says why.
        """
        prepared = self._prepared
        own = {unit.baseline for unit in prepared.discovery.units}
        for name in sorted({*(wanted.formats or ())} - own):
            supports = []
            for module in prepared.discovery.modules:
                if wanted.runtime in GRAPH_RUNTIMES:
                    supports.append(prepared.graph_runtime(wanted.runtime).support(module.operation, name))
                else:
                    weight = prepared.measurer.model.get_submodule(module.path).weight
                    assert isinstance(weight, torch.Tensor)
                    supports.append(feasible(module.operation, module.shapes, weight.device)[name])
            if all(support.level is not Level.NATIVE for support in supports):
                raise unusable(name, supports[0].reason or supports[0].level)

    def _kept(self, wanted: ToProfile, runtime: str, context_key: str) -> tuple[Profiled, list[str]]:
        """Return the profile of a runtime, made once, and the kernels for which there was no time."""
        if runtime not in self._profiles:
            self._profiles[runtime] = self._load_or_make(wanted, runtime, context_key)
        return self._profiles[runtime]

    def _load_or_make(self, wanted: ToProfile, runtime: str, context_key: str) -> tuple[Profiled, list[str]]:
        """Return the stored profile of this workload here, or make one, and keep it where it is whole."""
        discovery = self._prepared.discovery
        units = [[unit.name, [module.path for module in unit.modules]] for unit in discovery.units]
        memory = wanted.goal.objective == "memory"
        key = hashlib.sha256(json.dumps([units, memory, FORMAT_NAMES]).encode()).hexdigest()[:32]
        stored = None if wanted.anew else self._store.load_profile(context_key, key)
        if stored is not None:
            calibrations = calibrations_from_data(stored["calibrations"])
            landscape = Landscape.from_data(stored["landscape"], "stored profile")
            return Profiled(landscape.profile, calibrations, runtime), []
        profiled, late = self._make(wanted, runtime, context_key)
        if not late:
            space = search_space(discovery, profiled.profile, wanted.goal, None)
            reference = self._prepared.loaded.reference
            limit = wanted.goal.max_quality_drop
            landscape = Landscape(reference, space, profiled.profile, (), False, limit)
            calibrations = calibrations_to_data(profiled.calibrations)
            payload = {"landscape": landscape.to_data(), "calibrations": calibrations}
            self._store.save_profile(context_key, key, payload)
        return profiled, late

    def _make(self, wanted: ToProfile, runtime: str, context_key: str) -> tuple[Profiled, list[str]]:
        """Profile a runtime; return with it the names of kernels for which there was no time."""
        prepared = self._prepared
        late: list[str] = []
        until = time.perf_counter() + wanted.seconds
        passes = 0

        def progress(what: str, share: float) -> None:
            self._phase("profiling", what if runtime == EAGER else f"{runtime}: {what}", share)

        @contextmanager
        def guard(what: str) -> Iterator[str]:
            """Leave out a kernel for which there is no time, or that took the process down.

            The first is profiled however late it is: without any format there is nothing to search.
            """
            nonlocal passes
            passes += 1
            if time.perf_counter() > until and passes > 1:
                if not what.startswith(REFINING):
                    late.append(what)
                yield LATE
                return
            with self._survived(context_key, what) as reason:
                yield reason

        if runtime == EAGER:
            profiled = profile_workload(
                prepared.measurer,
                prepared.discovery,
                wanted.goal.objective,
                prepared.calibration,
                progress=progress,
                guard=guard,
                seen=prepared.seen,
            )
            return profiled, late
        architecture = prepared.context.architecture
        if runtime == COMPILE:
            from autoprec.envs.compile_profile import profile_compiled  # importing dynamo takes a second

            eager, late = self._kept(wanted, EAGER, self._store.save_context(prepared.context))
            profiled, seconds = profile_compiled(
                prepared.measurer, prepared.discovery, eager, architecture, progress
            )
            _check_affordable(wanted.budget, seconds)
            return profiled, late
        from autoprec.envs.graph_profile import profile_graph  # needs packages that are optional

        profiled = profile_graph(
            prepared.measurer,
            prepared.discovery,
            prepared.graph_runtime(runtime),
            architecture,
            wanted.goal.objective,
            prepared.calibration,
            progress=progress,
            guard=guard,
            seen=prepared.seen,
        )
        return profiled, late

    @contextmanager
    def _survived(self, context_key: str, what: str) -> Iterator[str]:
        """Give why a kernel is left out: it took the process down; empty where it did not."""
        place = (self._job_id, context_key, f"profile {what}")
        attempts = self._store.begin_run(*place, fresh=False)
        if attempts >= MAX_ATTEMPTS:
            yield f"the process died {attempts} times while it was profiled"
            return
        try:
            yield ""
        finally:
            self._store.abandon_run(*place, fresh=False)


def _check_affordable(budget: float | None, seconds: float) -> None:
    """Leave a comparison of runtimes where compiling one candidate takes too much of its time."""
    if budget is not None and seconds > COMPILE_SHARE * budget:
        raise RuntimeRefusedError(
            f"compiling one candidate took {seconds:.0f} s, more than {COMPILE_SHARE:.0%} of the time "
            f"budget ({budget:.0f} s): give a longer one, or --runtime {COMPILE}"
        )
