"""Record a landscape: measure a workload at many plans, for replaying searches on it later."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

from autoprec.agents.coverage import CoverageSearcher
from autoprec.envs.landscape import Landscape
from autoprec.envs.space import Trial, purpose_of
from autoprec.errors import SettingError
from autoprec.prepare import prepare
from autoprec.progress import Progress, Standing
from autoprec.runtime_search import JobParts, RuntimeSearch
from autoprec.settings import TuneSettings
from autoprec.store.records import Job
from autoprec.store.store import Store


def record(
    workload: Any, settings: TuneSettings, store: Store, runs: int, target: Path, progress: Progress
) -> Landscape:
    """Measure plans that cover the space, and write them as a landscape.

    Every run goes into the store as it finishes, and counts as measured when the same workload is recorded
    again: a recording that was stopped goes on where it was. A space of up to `runs` plans is recorded whole.

    Args:
        workload: What `load_workload` takes.
        settings: Workload, objective, limit, formats, groups, excluded modules, one runtime and a seed.
        store: Keeps the runs.
        runs: How many plans to measure.
        target: The landscape's file; `.gz` is compressed.
        progress: Hears what happens.

    Raises:
        UserError: The workload or a setting cannot be used, or the file cannot be written.
        KeyboardInterrupt: The user stopped it; what was measured is in the file and in the store.
    """
    if runs < 1:
        raise SettingError(f"runs is {runs}; at least 1 plan is measured")
    if len(settings.runtimes) > 1:
        raise SettingError("a landscape is of one runtime: give --runtime eager or another, not all")
    if not os.access(target.parent, os.W_OK):
        raise SettingError(f"out is {str(target)!r}; its directory cannot be written to: name another")
    started = time.perf_counter()
    progress.phase("preparing")
    prepared = prepare(workload, purpose_of(settings.objective), settings.groups, settings.exclude)
    measurer = prepared.measurer
    goal, _ = settings.goal(
        min(abs(measurer.baseline_quality(split)) for split in measurer.splits), measurer.baseline_bytes
    )
    job = Job(
        id=uuid.uuid4().hex[:10],
        workload=settings.workload,
        settings=settings.model_dump(mode="json") | {"recording": True},
        settings_key=f"record {settings.key}"[:32],
    )
    store.create_job(job)
    heard: list[Trial] = []

    def hear(trial: Trial) -> None:
        heard.append(trial)
        seconds = time.perf_counter() - started
        progress.standing(Standing(len(heard), runs, 0, seconds, seconds, None, None, trial))

    parts = JobParts(
        job_id=job.id,
        settings=settings,
        store=store,
        prepared=prepared,
        goal=goal,
        seconds=None,
        elapsed=lambda: time.perf_counter() - started,
        heard=hear,
        phase=progress.phase,
        note=progress.note,
        drop_dominated=False,
        slices=False,
    )
    search = RuntimeSearch(parts, settings.runtimes[0])
    progress.phase("recording")
    try:
        search.search(runs, lambda: False, CoverageSearcher(search.problem, settings.seed, runs))
    finally:
        space = search.problem.space
        landscape = Landscape(
            name=f"{settings.workload} {settings.objective} in {search.name}",
            space=space,
            profile=search.profiled.profile,
            trials=tuple(heard),  # a search that is stopped gives nothing back
            complete=len(heard) == space.size,
            max_quality_drop=goal.max_quality_drop,
        )
        landscape.save(target)
        store.update_job(job.id, state="finished", phase="recorded")
    return landscape
