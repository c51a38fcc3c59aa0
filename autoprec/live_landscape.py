"""A landscape that measures: for comparing searchers on a workload instead of on a recording of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from autoprec.bench_job import bench_job
from autoprec.envs.space import Assignment, Profile, SearchSpace, Trial
from autoprec.progress import Progress
from autoprec.runtime_search import RuntimeSearch
from autoprec.settings import TuneSettings
from autoprec.store.store import Store


class LiveLandscape:
    """Answers for a plan by running it; for one that was run before, by that run.

    So all searchers see the same figures of the same plan, and a comparison that was stopped goes on.

    Args:
        measured: Measures plans.
        name: What is measured, for people.

    Attributes:
        name: The same.
    """

    def __init__(self, measured: RuntimeSearch, name: str) -> None:
        self.name = name
        self._measured = measured
        self._known = {trial.assignment: trial for trial in measured.trials}

    @property
    def space(self) -> SearchSpace:
        """The search space."""
        return self._measured.problem.space

    @property
    def profile(self) -> Profile:
        """Its profile."""
        return self._measured.problem.profile

    @property
    def max_quality_drop(self) -> float:
        """The limit, absolute."""
        return self._measured.problem.goal.max_quality_drop

    @property
    def identity(self) -> str:
        """The name with a digest of what the figures hold for: workload, weights, machine, versions."""
        return f"{self.name} {self._measured.context_key[:8]}"

    def evaluate(self, assignment: Assignment, searcher: str) -> Trial:
        """Return the measured run of a plan."""
        if assignment not in self._known:
            self._known[assignment] = self._measured.evaluate(assignment, searcher)
        return replace(self._known[assignment], searcher=searcher)


@contextmanager
def live_landscape(
    workload: Any, settings: TuneSettings, store: Store, progress: Progress
) -> Iterator[LiveLandscape]:
    """Prepare and profile a workload, and give the landscape of its runs from now on.

    Args:
        workload: What `load_workload` takes.
        settings: Workload, objective, limit, formats, groups, excluded modules and one runtime.
        store: Keeps the runs.
        progress: Hears what happens.

    Raises:
        UserError: The workload or a setting cannot be used.
    """
    with bench_job(workload, settings, store, "compare", progress) as measured:
        progress.phase("comparing")
        yield LiveLandscape(measured, f"{settings.workload} {settings.objective} in {measured.name}, live")
