"""Record a landscape: measure a workload at many plans, for replaying searches on it later."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autoprec.agents.coverage import CoverageSearcher
from autoprec.bench_job import bench_job
from autoprec.envs.landscape import Landscape, LandscapeError
from autoprec.envs.space import SearchSpace, Trial
from autoprec.errors import SettingError
from autoprec.progress import Progress
from autoprec.runtime_search import RuntimeSearch
from autoprec.settings import TuneSettings
from autoprec.store.store import Store


def record(
    workload: Any, settings: TuneSettings, store: Store, runs: int, target: Path, progress: Progress
) -> Landscape:
    """Measure plans that cover the space, and write them as a landscape.

    Every run goes into the store as it finishes, and counts as measured when the same workload is recorded
    again: a recording that was stopped goes on where it was. A space of up to `runs` plans is recorded whole.
    A landscape of the same space that holds more runs is not overwritten.

    Args:
        workload: What `load_workload` takes.
        settings: Workload, objective, limit, formats, groups, excluded modules, one runtime and a seed.
        store: Keeps the runs.
        runs: How many plans to measure.
        target: The landscape's file; `.gz` is compressed.
        progress: Hears what happens.

    Raises:
        UserError: The workload or a setting cannot be used, or the file cannot be written.
        KeyboardInterrupt: The user stopped it; what was measured is kept.
    """
    if runs < 1:
        raise SettingError(f"runs is {runs}; at least 1 plan is measured")
    if target.is_dir() or not os.access(target.parent, os.W_OK):
        raise SettingError(
            f"out is {str(target)!r}; its directory cannot be written to, or it is one: name another"
        )
    heard: list[Trial] = []
    with bench_job(workload, settings, store, "record", progress, runs=runs, heard=heard.append) as measured:
        progress.phase("recording")
        try:
            measured.search(runs, lambda: False, CoverageSearcher(measured.problem, settings.seed, runs))
        finally:  # a search that is stopped gives nothing back
            landscape = _landscape(measured, settings, heard)
            if (held := _runs_of(target, landscape.space)) > len(heard):
                progress.note(
                    f"{target} is left as it is: it holds {held} runs, not {len(heard)}; "
                    "move it to have these"
                )
            else:
                landscape.save(target)
    return landscape


def _landscape(measured: RuntimeSearch, settings: TuneSettings, trials: Sequence[Trial]) -> Landscape:
    problem = measured.problem
    return Landscape(
        name=f"{settings.workload} {settings.objective} in {measured.name}",
        space=problem.space,
        profile=problem.profile,
        trials=tuple(trials),
        complete=len(trials) == problem.space.size,
        max_quality_drop=problem.goal.max_quality_drop,
    )


def _runs_of(target: Path, space: SearchSpace) -> int:
    """Return how many runs a landscape file of the same space holds; 0 where it is none."""
    try:
        found = Landscape.load(target)
    except LandscapeError:
        return 0
    same = found.space.units == space.units and found.space.baseline == space.baseline
    return len(found.trials) if same and np.array_equal(found.space.mask, space.mask) else 0
