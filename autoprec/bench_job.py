"""A job that measures a workload for comparing searchers, instead of tuning it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autoprec.envs.space import Trial, best_trial, purpose_of
from autoprec.errors import SettingError
from autoprec.job_state import new_job, running_job
from autoprec.prepare import prepare
from autoprec.progress import Progress, Standing
from autoprec.runtime_search import JobParts, RuntimeSearch
from autoprec.settings import TuneSettings
from autoprec.station import Station
from autoprec.store.store import Store


@contextmanager
def bench_job(
    workload: Any,
    settings: TuneSettings,
    store: Store,
    purpose: str,
    progress: Progress,
    *,
    runs: int | None = None,
    heard: Callable[[Trial], None] = lambda trial: None,
) -> Iterator[RuntimeSearch]:
    """Prepare and profile a workload, and give what measures plans of it in one runtime.

    Every run goes into the store as it finishes. A job of the same settings and purpose that did not finish
    goes on, so a plan that takes the process down twice counts as failed. Plans are judged on all of the
    data, and no format is left out as useless.

    Args:
        workload: What `load_workload` takes.
        settings: Workload, objective, limit, formats, groups, excluded modules, one runtime and a seed.
        store: Keeps the runs.
        purpose: What the runs are for: `record` or `compare`.
        progress: Hears what happens.
        runs: How many runs there will be, where that is known; for `progress`.
        heard: Hears of every trial.

    Raises:
        UserError: The workload or a setting cannot be used.
        KeyboardInterrupt: The user stopped it; what was measured is kept.
    """
    if len(settings.runtimes) > 1:
        raise SettingError("searchers are compared in one runtime: give --runtime eager or another, not all")
    started = time.perf_counter()
    key = f"{purpose} {settings.key}"[:32]
    job = store.resumable_job(key) or new_job(store, settings, key, purpose=purpose)
    before = job.elapsed_seconds
    trials: list[Trial] = []

    def elapsed() -> float:
        return before + time.perf_counter() - started

    def hear(trial: Trial) -> None:
        trials.append(trial)
        heard(trial)
        best = best_trial(trials, goal)
        searching = time.perf_counter() - started
        progress.standing(Standing(len(trials), runs, 0, elapsed(), searching, None, best, trial))

    with running_job(store, job.id, elapsed):
        progress.phase("preparing")
        prepared = prepare(workload, purpose_of(settings.objective), settings.groups, settings.exclude)
        station = Station(prepared, store, job.id, progress.phase, progress.note)
        goal, _ = settings.goal(station.facts.least_quality, station.facts.baseline_bytes)
        parts = JobParts(
            job_id=job.id,
            settings=settings,
            store=store,
            station=station,
            goal=goal,
            seconds=None,
            elapsed=elapsed,
            heard=hear,
            phase=progress.phase,
            note=progress.note,
            drop_dominated=False,
            slices=False,
        )
        yield RuntimeSearch(parts, settings.runtimes[0])
