"""One tuning job from start to end: prepare, profile, search, measure the winners again, keep the plans."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from autoprec.agents.warm_start import cheapest_plan
from autoprec.envs.space import Goal, Trial, best_trial, purpose_of
from autoprec.errors import RuntimeRefusedError, SettingError
from autoprec.fresh import Verdict
from autoprec.job_state import new_job, running_job
from autoprec.plan import Plan
from autoprec.prepare import prepare
from autoprec.progress import Progress, Standing
from autoprec.result import RuntimeOutcome, Spending, TuneResult
from autoprec.runtime_search import JobParts, RuntimeSearch
from autoprec.settings import DEFAULT_RELATIVE_DROP, Budget, TuneSettings
from autoprec.station import Measuring, Station
from autoprec.store.records import Job
from autoprec.store.store import Store

FRESH_SHARE = 0.2
"""Share of a budget in time that is kept for measuring the winners again; the same share of the whole is
allowed where the budget is in runs, but at least `FRESH_SECONDS`."""
FRESH_SECONDS = 120.0
EXPLORED = 0.5
"""Share of the search in which every runtime that may win gets its part; the best then gets the rest."""
HOPELESS = 0.98
"""A runtime is searched only where its cheapest plan costs at most this share of another's lossless one."""
FEW_RUNS = 8
"""A runtime whose part of the time holds fewer runs is left out where another's take half as long, unless its
cheapest plan may be the cheapest of all."""
OPTIMISM = 0.85
"""Share of what the profile expects a runtime's cheapest plan to cost that it may turn out to cost."""


class TuningJob:
    """One job; `run` is called once.

    Args:
        settings: What is asked for.
        store: Where everything that is measured goes, as it is measured.
        progress: Hears what happens.
        resume: Go on with the newest unfinished job of the same settings; start anew where there is none.
        workload: The workload, where it is loaded already; `settings.workload` then only names it.
        out: Directory that takes the files of the best plan's runtime; it exists.
        job: The job, where it is in the store already: it goes on.
        stations: Gives what measures, once the job runs; by default this process does.
    """

    def __init__(
        self,
        settings: TuneSettings,
        store: Store,
        progress: Progress,
        *,
        resume: bool = False,
        workload: Any = None,
        out: Path | None = None,
        job: Job | None = None,
        stations: Callable[[TuningJob], AbstractContextManager[Measuring]] | None = None,
    ) -> None:
        self.out = out
        self.settings = settings
        self.store = store
        self.progress = progress
        self.workload = settings.workload if workload is None else workload
        self._started = time.perf_counter()
        self._stations = stations or _in_this_process
        found = job
        if found is None and resume:
            found = store.resumable_job(settings.key)
        if found is None:
            if resume:
                progress.note("no unfinished job of these settings is in the store: starting a new one")
            found = new_job(store, settings, settings.key)
        self.job = found
        self._trials: list[Trial] = []
        self._search_started = self._started
        self._runs_before = 0

    @property
    def elapsed(self) -> float:
        """Wall seconds used by the job, over all resumes."""
        return self.job.elapsed_seconds + time.perf_counter() - self._started

    def discount(self, seconds: float) -> None:
        """Take time in which the job waited for a device out of what it has used."""
        self._started += seconds

    def run(self) -> TuneResult:
        """Do the job. Whatever ends it, the store says in which state it is.

        Raises:
            UserError: The workload or a setting cannot be used.
            KeyboardInterrupt: The user stopped it; it can be resumed.
        """
        with running_job(self.store, self.job.id, lambda: self.elapsed):
            self.phase("preparing")
            started = time.perf_counter()
            with self._stations(self) as station:
                self.station = station
                return self._run(started)

    def _run(self, started: float) -> TuneResult:
        facts = self.station.facts
        self.context_key = self.store.save_context(facts.context)
        if self.job.context_key not in (None, self.context_key):
            raise SettingError(
                f"job {self.job.id} cannot be resumed: its workload, the device or a library version has "
                "changed since; start a new job, without resume"
            )
        self.store.update_job(self.job.id, context_key=self.context_key)
        goal, limit = self._goal()
        budget = (
            Budget.parse(self.settings.budget)
            if self.settings.budget
            else Budget.default(len(facts.discovery.units))
        )
        setup = time.perf_counter() - started

        started = time.perf_counter()
        self.phase("profiling")
        parts = JobParts(
            job_id=self.job.id,
            settings=self.settings,
            store=self.store,
            station=self.station,
            goal=goal,
            seconds=budget.seconds,
            elapsed=lambda: self.elapsed,
            heard=lambda trial: self._heard(trial, goal, budget),
            phase=self.phase,
            note=self.progress.note,
        )
        searches, refused = self._searches(parts)
        profiling = time.perf_counter() - started

        started = time.perf_counter()
        self.phase("searching")
        self._search_started, self._runs_before = started, len(self._trials)
        self._tell(goal, budget)
        dropped = self._scout(searches, budget)
        kept = [search for search in searches if search.name not in dropped]
        self._search(kept, goal, budget)
        searching = time.perf_counter() - started

        started = time.perf_counter()
        self.phase("measuring winners")
        self._fresh_until = self.elapsed + max(FRESH_SECONDS, FRESH_SHARE / (1 - FRESH_SHARE) * self.elapsed)
        measured = sum(not run.cached and not run.fresh for run in self.store.job_runs(self.job.id))
        verdicts = {
            search.name: search.decide(
                limit, measured, self._time_left(budget, len(searches) - index), whole=search in kept
            )
            for index, search in enumerate(searches)
        }
        champion, met = self._champion(verdicts, goal, self._time_left(budget, 1))
        winner = next(search for search in searches if search.name == champion)
        verdict = verdicts[champion]
        for search in searches:
            self._save_plans(search, verdicts[search.name])
        runs = self.store.job_runs(self.job.id)
        artefacts = self._write_artefacts(verdict.best or verdict.lossless)
        notes = [
            note if len(searches) == 1 else f"{name}: {note}"
            for name, found in verdicts.items()
            for note in found.notes
        ]
        return TuneResult(
            best=verdict.best,
            lossless=verdict.lossless,
            front=verdict.front,
            bound=verdict.bound,
            notes=(*self._notes(goal), *notes, *met),
            goal=goal,
            space=winner.problem.space,
            profile=winner.profiled.profile,
            trials=tuple(winner.trials),
            failures=tuple((run.formats, run.reason or "") for run in runs if run.status == "failed"),
            left=dict(facts.discovery.left),
            workload=facts.workload,
            baseline_quality=facts.quality["search"],
            quality_name=facts.quality_name,
            job_id=self.job.id,
            store=self.store.location,
            cached=sum(run.cached for run in runs),
            spending=Spending(
                setup=setup,
                profile=profiling,
                measuring=parts.measuring,
                thinking=max(0.0, searching - parts.measuring),
                fresh=time.perf_counter() - started,
            ),
            runtimes=(
                *(
                    _outcome(search, verdicts[search.name], dropped.get(search.name, ""))
                    for search in searches
                ),
                *(RuntimeOutcome(name, None, None, 0, 0.0, reason) for name, reason in refused.items()),
            ),
            artefacts=artefacts,
        )

    def _searches(self, parts: JobParts) -> tuple[list[RuntimeSearch], dict[str, str]]:
        """Return a search for each runtime asked for, profiled, and why others are left out."""
        searches: list[RuntimeSearch] = []
        refused: dict[str, str] = {}
        names = self.settings.runtimes
        for index, name in enumerate(names):
            try:
                searches.append(RuntimeSearch(parts, name, len(names) - index))
            except (RuntimeRefusedError, SettingError) as error:
                if isinstance(error, SettingError) and len(names) == 1:
                    raise
                refused[name] = str(error)
                self.progress.note(f"{name} is left out: {error}")
        if not searches:
            name, reason = next(iter(refused.items()))
            raise SettingError(f"runtime {name} cannot run this workload: {reason}")
        return searches, refused

    def _scout(self, searches: list[RuntimeSearch], budget: Budget) -> dict[str, str]:
        """Measure what each runtime offers and return those that cannot win, with the reason."""
        if len(searches) == 1:
            return {}
        lossless = {search.name: search.scout(search.problem.space.baseline) for search in searches}

        promises = {search.name: search.expected_cost(cheapest_plan(search.problem)) for search in searches}
        quickest = min(search.run_seconds() for search in searches)
        part = EXPLORED * max(0.0, (self._end_of(budget, 1.0) or math.inf) - self.elapsed) / len(searches)

        def hopeless(search: RuntimeSearch) -> str:
            if lossless[search.name] <= min(lossless.values()):
                return ""
            if math.isinf(lossless[search.name]):
                return "its plan without loss failed"
            took = search.run_seconds()
            promising = OPTIMISM * promises[search.name] <= min(promises.values())
            if took > 2 * quickest and FEW_RUNS * took > part and not promising:
                return f"a run of it takes {took:.0f} s, of which too few fit the time budget"
            enough = HOPELESS * min(cost for name, cost in lossless.items() if name != search.name)
            # What is far from enough by the profile is not worth a run to be told so.
            if OPTIMISM * promises[search.name] >= enough:
                times = HOPELESS * promises[search.name] / enough
                return (
                    f"its profile promises no plan below {times:.2f} times the cost of another without loss"
                )
            if search.scout(cheapest_plan(search.problem)) >= enough:
                return "without any limit on quality it is no better than another without loss"
            return ""

        found = {search.name: hopeless(search) for search in searches}
        return {name: reason for name, reason in found.items() if reason}

    def _search(self, searches: list[RuntimeSearch], goal: Goal, budget: Budget) -> None:
        """Share half of what is left of the budget among the runtimes; the leader then gets the rest."""
        if len(searches) > 1:
            end = self._end_of(budget, EXPLORED)
            runs = None if budget.runs is None else int(EXPLORED * (budget.runs - len(self._trials)))
            for index, search in enumerate(searches):
                until = None if end is None else self.elapsed + (end - self.elapsed) / (len(searches) - index)
                search.search(
                    None if runs is None else len(search.trials) + max(0, runs) // len(searches),
                    partial(self._is_past, until),
                )

        def lead(search: RuntimeSearch) -> float:
            best = best_trial(search.trials, goal)
            return math.inf if best is None else best.cost(goal)

        leader = min(searches, key=lead)
        left = None if budget.runs is None else len(leader.trials) + max(0, budget.runs - len(self._trials))
        leader.search(left, partial(self._is_past, self._end_of(budget, 1.0)))

    def _end_of(self, budget: Budget, share: float) -> float | None:
        """Return when a share of the time that is left for searching ends."""
        if budget.seconds is None:
            return None
        return self.elapsed + share * (budget.seconds * (1 - FRESH_SHARE) - self.elapsed)

    def _is_past(self, until: float | None) -> bool:
        return until is not None and self.elapsed > until

    def _time_left(self, budget: Budget, shares: int) -> Callable[[], float]:
        """Return what tells the seconds that are left of one share of the time that is left now."""
        end = self._fresh_until if budget.seconds is None else budget.seconds
        until = self.elapsed + (end - self.elapsed) / shares
        return lambda: until - self.elapsed

    def _champion(
        self, verdicts: dict[str, Verdict], goal: Goal, seconds_left: Callable[[], float]
    ) -> tuple[str, list[str]]:
        """Return the runtime whose plan is the best, and how that was found.

        Those that meet the goal come first; where none does, the lossless plans decide.
        """
        meeting = {name: found.best for name, found in verdicts.items() if found.best is not None}
        plans = meeting or {name: found.lossless for name, found in verdicts.items()}
        return self.station.fastest(plans, goal, seconds_left())

    def _save_plans(self, search: RuntimeSearch, verdict: Verdict) -> None:
        if verdict.best is not None:
            self.store.save_plan(self.job.id, search.context_key, "best", verdict.best)
        self.store.save_plan(self.job.id, search.context_key, "lossless", verdict.lossless)
        for plan in verdict.front:
            self.store.save_plan(self.job.id, search.context_key, "front", plan)

    def _write_artefacts(self, plan: Plan) -> tuple[Path, ...]:
        """Write the files that run the plan without this package into the directory for results."""
        if self.out is None:
            return ()
        files, reason = self.station.write_artefacts(plan, self.out)
        if reason:
            self.progress.note(reason)
        return files

    def _goal(self) -> tuple[Goal, float | None]:
        """Return the goal, and the limit on quality drop that the user gave."""
        return self.settings.goal(self.station.facts.least_quality, self.station.facts.baseline_bytes)

    def _notes(self, goal: Goal) -> list[str]:
        notes = []
        if goal.whole_front:
            notes.append(
                f"no quality limit was given: the plan called best is the one for a drop of at most "
                f"{DEFAULT_RELATIVE_DROP:.0%} of the baseline's quality ({goal.max_quality_drop:.4g})"
            )
        facts = self.station.facts
        if facts.split == "search":
            judge = "quality" if facts.has_quality else "fidelity"
            notes.append(
                f"{judge} has no held-out split: winners were judged on the data they were chosen on"
            )
        if not facts.calibrated:
            notes.append("the workload gives no calibration batches: static formats used the example inputs")
        return notes

    def phase(self, name: str, detail: str = "", share: float | None = None) -> None:
        """Say what is done, and keep it in the store where it is something else than before."""
        if share is None:
            self.store.update_job(self.job.id, phase=name, elapsed_seconds=self.elapsed)
        self.progress.phase(name, detail, share)

    def _heard(self, trial: Trial, goal: Goal, budget: Budget) -> None:
        self._trials.append(trial)
        self.store.update_job(self.job.id, elapsed_seconds=self.elapsed)
        self._tell(goal, budget)

    def _tell(self, goal: Goal, budget: Budget) -> None:
        self.progress.standing(
            Standing(
                runs=len(self._trials),
                max_runs=budget.runs,
                runs_before=self._runs_before,
                seconds=self.elapsed,
                searching=time.perf_counter() - self._search_started,
                max_seconds=budget.seconds,
                best=best_trial(self._trials, goal),
                last=self._trials[-1] if self._trials else None,
            )
        )


@contextmanager
def _in_this_process(job: TuningJob) -> Iterator[Measuring]:
    """Make the workload ready here."""
    settings = job.settings
    prepared = prepare(job.workload, purpose_of(settings.objective), settings.groups, settings.exclude)
    yield Station(prepared, job.store, job.job.id, job.phase, job.progress.note)


def _outcome(search: RuntimeSearch, verdict: Verdict, reason: str) -> RuntimeOutcome:
    trials, seconds = len(search.trials), search.run_seconds()
    return RuntimeOutcome(search.name, verdict.best, verdict.lossless, trials, seconds, reason)
