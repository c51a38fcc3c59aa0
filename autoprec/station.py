"""A measuring station: one workload made ready on one device, profiled there and run under plans.

The search is elsewhere: it asks a station, in this process or in another, and everything that goes in or
comes out can travel.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from autoprec.envs.profile import Profiled
from autoprec.envs.space import Goal
from autoprec.errors import AutoPrecError, CandidateError, one_line
from autoprec.execute import RunRequest, execute
from autoprec.facts import Facts, facts_of
from autoprec.plan import MODULE_RUNTIMES, Plan
from autoprec.playoff import fastest
from autoprec.prepare import Prepared
from autoprec.profiling import RuntimeProfiler, ToProfile
from autoprec.runtimes.written import written_and_foreign
from autoprec.store.records import Context, Run
from autoprec.store.store import Store


class Measuring(Protocol):
    """What a search asks for measurements: a station, or several of one kind."""

    @property
    def facts(self) -> Facts:
        """The workload, made ready."""
        ...

    @property
    def slots(self) -> int:
        """How many plans are measured at once, at most; `run` may be called by as many threads."""
        ...

    def profile(self, wanted: ToProfile) -> tuple[Context, Profiled, list[str]]:
        """Profile a runtime; return what its figures hold for, the profile, and kernels left out for time.

        Raises:
            RuntimeRefusedError: The runtime is not installed or cannot run the model.
            SettingError: A format that was asked for is native in no unit.
        """
        ...

    def run(self, request: RunRequest) -> Run:
        """Execute a plan; its failure is a run too. The runtime was profiled before."""
        ...

    def fastest(self, plans: Mapping[str, Plan], goal: Goal, seconds: float) -> tuple[str, list[str]]:
        """Return the runtime whose plan is the fastest, and how that was found; see `playoff.fastest`."""
        ...

    def write_artefacts(self, plan: Plan, folder: Path) -> tuple[tuple[Path, ...], str]:
        """Write the files that run a plan without this package; return them, or none and why not."""
        ...


class StationLostError(AutoPrecError):
    """The process of a station died while it worked."""


class Station:
    """Measures in this process.

    Args:
        prepared: The workload.
        store: Keeps profiles, and which run or pass is in flight.
        job_id: The job that measures.
        phase: Hears what is done: phase, detail, share.
        note: Hears what the user should know.
    """

    slots = 1

    def __init__(
        self,
        prepared: Prepared,
        store: Store,
        job_id: str,
        phase: Callable[[str, str, float | None], None],
        note: Callable[[str], None],
    ) -> None:
        self.facts = facts_of(prepared)
        self._prepared = prepared
        self._profiler = RuntimeProfiler(prepared, store, job_id, phase, note)

    def profile(self, wanted: ToProfile) -> tuple[Context, Profiled, list[str]]:
        """See `Measuring`."""
        return self._profiler.profile(wanted)

    def run(self, request: RunRequest) -> Run:
        """See `Measuring`."""
        self._prepared.use_runtime(request.plan.runtime)  # another station may be the one that profiled it
        return execute(self._prepared.measurer, request)

    def fastest(self, plans: Mapping[str, Plan], goal: Goal, seconds: float) -> tuple[str, list[str]]:
        """See `Measuring`."""
        for plan in plans.values():
            self._prepared.use_runtime(plan.runtime)
        until = time.perf_counter() + seconds
        return fastest(self._prepared.measurer, plans, goal, lambda: until - time.perf_counter())

    def write_artefacts(self, plan: Plan, folder: Path) -> tuple[tuple[Path, ...], str]:
        """See `Measuring`."""
        copied: list[Path] = []
        try:
            earlier, foreign = written_and_foreign(folder)
            for file in earlier:
                file.unlink(missing_ok=True)  # they would pass for this job's
            if plan.runtime in MODULE_RUNTIMES:
                return (), ""
            if foreign:
                raise FileExistsError(f"{foreign[0].name} there is not a job's and stays")
            self._prepared.use_runtime(plan.runtime)
            with self._prepared.measurer.executable(plan) as executable:
                for file in executable.artefacts():
                    copied.append(folder / file.name)
                    shutil.copy(file, copied[-1])
            return tuple(copied), ""
        except (OSError, CandidateError) as error:
            reason = str(error) if isinstance(error, CandidateError) else one_line(error)
            for file in copied:
                with contextlib.suppress(OSError):
                    file.unlink()  # half of them is none
            return (), f"the model files in {folder} could not be written: {reason}"
