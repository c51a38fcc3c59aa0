"""Record a landscape: measure a workload at many plans, for replaying searches on it later."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from autoprec.agents.coverage import CoverageSearcher
from autoprec.envs.landscape import Landscape, LandscapeError
from autoprec.envs.space import SearchSpace, Trial, purpose_of
from autoprec.errors import SettingError, StoreError
from autoprec.lock import JobRunningError, job_lock
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
    if len(settings.runtimes) > 1:
        raise SettingError("a landscape is of one runtime: give --runtime eager or another, not all")
    if target.is_dir() or not os.access(target.parent, os.W_OK):
        raise SettingError(
            f"out is {str(target)!r}; its directory cannot be written to, or it is one: name another"
        )
    started = time.perf_counter()
    progress.phase("preparing")
    prepared = prepare(workload, purpose_of(settings.objective), settings.groups, settings.exclude)
    measurer = prepared.measurer
    goal, _ = settings.goal(
        min(abs(measurer.baseline_quality(split)) for split in measurer.splits), measurer.baseline_bytes
    )
    key = f"record {settings.key}"[:32]
    job = store.resumable_job(key)
    if job is None:
        job = Job(
            id=uuid.uuid4().hex[:10],
            workload=settings.workload,
            settings=settings.model_dump(mode="json") | {"recording": True},
            settings_key=key,
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
    try:
        # One job as long as it is not finished: a plan that takes the process down twice counts as failed.
        with job_lock(job.id):
            store.update_job(job.id, state="running", message="")
            found = _record(parts, runs, target, heard)
    except JobRunningError:
        raise  # it is another process's, and stays in the state that it says
    except KeyboardInterrupt:
        store.update_job(job.id, state="interrupted")
        raise
    except StoreError:
        raise  # the store cannot be told
    except Exception as error:
        store.update_job(job.id, state="failed", message=f"{type(error).__name__}: {error}"[:2000])
        raise
    store.update_job(job.id, state="finished", phase="recorded")
    return found


def _record(parts: JobParts, runs: int, target: Path, heard: list[Trial]) -> Landscape:
    settings = parts.settings
    search = RuntimeSearch(parts, settings.runtimes[0])
    parts.phase("recording", "", None)
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
            max_quality_drop=parts.goal.max_quality_drop,
        )
        if (held := _runs_of(target, space)) > len(heard):
            parts.note(
                f"{target} is left as it is: it holds {held} runs, not {len(heard)}; move it to have these"
            )
        else:
            landscape.save(target)
    return landscape


def _runs_of(target: Path, space: SearchSpace) -> int:
    """Return how many runs a landscape file of the same space holds; 0 where it is none."""
    try:
        found = Landscape.load(target)
    except LandscapeError:
        return 0
    same = found.space.units == space.units and found.space.baseline == space.baseline
    return len(found.trials) if same and np.array_equal(found.space.mask, space.mask) else 0
