"""One tuning job from start to end: prepare, profile, search, measure the winners again, keep the plans."""

from __future__ import annotations

import hashlib
import json
import math
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from autoprec.agents.evaluate import run_search
from autoprec.agents.searcher import Problem, make_searcher
from autoprec.agents.warm_start import initial_plans
from autoprec.envs.landscape import Landscape
from autoprec.envs.measure import SEARCH_TIMING
from autoprec.envs.plans import assignment_of, plan_of
from autoprec.envs.profile import Profiled, profile_workload
from autoprec.envs.search_space import search_space
from autoprec.envs.space import FORMAT_NAMES, Assignment, Goal, Trial, best_trial
from autoprec.errors import SettingError, StoreError
from autoprec.execute import RunRequest, execute, failed_run
from autoprec.fresh import FreshMeasuring
from autoprec.lock import JobRunningError, job_lock
from autoprec.prepare import prepare
from autoprec.progress import Progress, Standing
from autoprec.result import Spending, TuneResult
from autoprec.settings import DEFAULT_RELATIVE_DROP, Budget, TuneSettings
from autoprec.store.records import Job, Run
from autoprec.store.store import Store

BATCH = 4
"""Plans measured between two rounds of thinking."""
FRESH_SHARE = 0.2
"""Share of a budget in time that is kept for measuring the winners again."""
PROFILE_SHARE = 0.5
"""Share of a budget in time after which no further kernel is profiled."""
MAX_ATTEMPTS = 2
"""A plan whose run was begun this often and never ended took the process down: it counts as failed."""


class TuningJob:
    """One job; `run` is called once.

    Args:
        settings: What is asked for.
        store: Where everything that is measured goes, as it is measured.
        progress: Hears what happens.
        resume: Go on with the newest unfinished job of the same settings; start anew where there is none.
        workload: The workload, where it is loaded already; `settings.workload` then only names it.
    """

    def __init__(
        self,
        settings: TuneSettings,
        store: Store,
        progress: Progress,
        *,
        resume: bool = False,
        workload: Any = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.progress = progress
        self._workload = settings.workload if workload is None else workload
        self._started = time.perf_counter()
        found = store.resumable_job(settings.key) if resume else None
        if found is None:
            if resume:
                progress.note("no unfinished job of these settings is in the store: starting a new one")
            found = Job(
                id=uuid.uuid4().hex[:10],
                workload=settings.workload,
                settings=settings.model_dump(mode="json"),
                settings_key=settings.key,
            )
            store.create_job(found)
        self.job = found
        self._measuring = 0.0

    @property
    def elapsed(self) -> float:
        """Wall seconds used by the job, over all resumes."""
        return self.job.elapsed_seconds + time.perf_counter() - self._started

    def run(self) -> TuneResult:
        """Do the job. Whatever ends it, the store says in which state it is.

        Raises:
            UserError: The workload or a setting cannot be used.
            KeyboardInterrupt: The user stopped it; it can be resumed.
        """
        try:
            with job_lock(self.job.id):
                self.store.update_job(self.job.id, state="running", message="")
                result = self._run()
        except JobRunningError:
            raise  # it is another process's, and stays in the state that it says
        except KeyboardInterrupt:
            self.store.update_job(self.job.id, state="interrupted", elapsed_seconds=self.elapsed)
            raise
        except StoreError:
            raise  # the store cannot be told
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"[:2000]
            self.store.update_job(self.job.id, state="failed", message=reason, elapsed_seconds=self.elapsed)
            raise
        self.store.update_job(self.job.id, state="finished", phase="finished", elapsed_seconds=self.elapsed)
        return result

    def _run(self) -> TuneResult:
        self._phase("preparing")
        started = time.perf_counter()
        purpose: Literal["latency", "throughput"] = (
            "throughput" if self.settings.objective == "throughput" else "latency"
        )
        self.prepared = prepare(self._workload, purpose, self.settings.groups, self.settings.exclude)
        self.context_key = self.store.save_context(self.prepared.context)
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
            else Budget.default(len(self.prepared.discovery.units))
        )
        setup = time.perf_counter() - started

        started = time.perf_counter()
        self._phase("profiling")
        profiled = self._profile(goal, budget)
        space = search_space(self.prepared.discovery, profiled.profile, goal, self.settings.formats)
        problem = Problem(space, profiled.profile, goal)
        profiling = time.perf_counter() - started

        started = time.perf_counter()
        self._phase("searching")
        trials = self._search(problem, profiled, budget)
        searching = time.perf_counter() - started

        started = time.perf_counter()
        self._phase("measuring winners")
        fresh = FreshMeasuring(
            self.prepared,
            profiled,
            problem,
            limit,
            self._run_kept,
            sum(not run.cached and not run.fresh for run in self.store.job_runs(self.job.id)),
            self._known_fresh_runs(),
            lambda: math.inf if budget.seconds is None else budget.seconds - self.elapsed,
        )
        verdict = fresh.decide(trials, lambda what, share: self._phase("measuring winners", what, share))
        runs = self.store.job_runs(self.job.id)
        if verdict.best is not None:
            self.store.save_plan(self.job.id, self.context_key, "best", verdict.best)
        self.store.save_plan(self.job.id, self.context_key, "lossless", verdict.lossless)
        for plan in verdict.front:
            self.store.save_plan(self.job.id, self.context_key, "front", plan)
        return TuneResult(
            best=verdict.best,
            lossless=verdict.lossless,
            front=verdict.front,
            bound=verdict.bound,
            notes=(*self._notes(goal), *verdict.notes),
            goal=goal,
            space=space,
            profile=profiled.profile,
            trials=tuple(trials),
            failures=tuple((run.formats, run.reason or "") for run in runs if run.status == "failed"),
            left=dict(self.prepared.discovery.left),
            workload=self.prepared.loaded.reference,
            baseline_quality=self.prepared.measurer.baseline_quality("search"),
            quality_name=self.prepared.loaded.quality_name,
            job_id=self.job.id,
            store=self.store.location,
            cached=sum(run.cached for run in runs),
            spending=Spending(
                setup=setup,
                profile=profiling,
                measuring=self._measuring,
                thinking=max(0.0, searching - self._measuring),
                fresh=time.perf_counter() - started,
            ),
        )

    def _goal(self) -> tuple[Goal, float | None]:
        """Return the goal, and the limit on quality drop that the user gave."""
        measurer = self.prepared.measurer
        # A share of the baseline's quality is to hold on every part of the data, the held-out one too.
        baseline = min(abs(measurer.baseline_quality(split)) for split in measurer.splits)
        limit = self.settings.quality_limit(baseline)
        allowed = DEFAULT_RELATIVE_DROP * baseline if limit is None else limit
        byte_limit = self.settings.byte_limit(measurer.baseline_bytes)
        return Goal(self.settings.objective, allowed, limit is None, byte_limit), limit

    def _notes(self, goal: Goal) -> list[str]:
        notes = []
        if goal.whole_front:
            notes.append(
                f"no quality limit was given: the plan called best is the one for a drop of at most "
                f"{DEFAULT_RELATIVE_DROP:.0%} of the baseline's quality ({goal.max_quality_drop:.4g})"
            )
        if not self.prepared.loaded.has_final_split:
            judge = "quality" if self.prepared.loaded.has_quality else "fidelity"
            notes.append(
                f"{judge} has no held-out split: winners were judged on the data they were chosen on"
            )
        if not self.prepared.calibration:
            notes.append("the workload gives no calibration batches: static formats used the example inputs")
        return notes

    def _profile(self, goal: Goal, budget: Budget) -> Profiled:
        """Return the stored profile of this workload here, or make one, and keep it where it is whole."""
        discovery = self.prepared.discovery
        units = [[unit.name, [module.path for module in unit.modules]] for unit in discovery.units]
        memory = goal.objective == "memory"
        key = hashlib.sha256(json.dumps([units, memory, FORMAT_NAMES]).encode()).hexdigest()[:32]
        stored = self.store.load_profile(self.context_key, key)
        if stored is not None:
            ranges = {path: (float(low), float(high)) for path, (low, high) in stored["ranges"].items()}
            return Profiled(Landscape.from_data(stored["landscape"], "stored profile").profile, ranges)
        deadline = math.inf if budget.seconds is None else PROFILE_SHARE * budget.seconds
        late: list[str] = []

        @contextmanager
        def guard(what: str) -> Iterator[str]:
            if self.elapsed > deadline:
                late.append(what)
                yield "the time budget ended before it was profiled"
                return
            place = (self.job.id, self.context_key, f"profile {what}")
            attempts = self.store.begin_run(*place, fresh=False)
            if attempts >= MAX_ATTEMPTS:
                yield f"the process died {attempts} times while it was profiled"
                return
            try:
                yield ""
            finally:
                self.store.abandon_run(*place, fresh=False)

        profiled = profile_workload(
            self.prepared.measurer,
            discovery,
            goal.objective,
            self.prepared.calibration,
            progress=lambda what, share: self._phase("profiling", what, share),
            guard=guard,
        )
        if late:
            self.progress.note(
                f"{PROFILE_SHARE:.0%} of the time budget ended before {len(late)} kernels were profiled, so "
                "they are left out; give a longer budget"
            )
            return profiled
        space = search_space(discovery, profiled.profile, goal, None)
        landscape = Landscape(
            self.prepared.loaded.reference, space, profiled.profile, (), False, goal.max_quality_drop
        )
        payload = {"landscape": landscape.to_data(), "ranges": profiled.ranges}
        self.store.save_profile(self.context_key, key, payload)
        return profiled

    def _search(self, problem: Problem, profiled: Profiled, budget: Budget) -> list[Trial]:
        already = self._stored_trials(problem)
        searcher = make_searcher(self.settings.searcher, problem, self.settings.seed)
        deadline = None if budget.seconds is None else budget.seconds * (1 - FRESH_SHARE)
        done = list(already)
        self._tell(problem.goal, done, budget)

        def evaluate(assignment: Assignment, proposer: str) -> Trial:
            trial = self._evaluate(problem, profiled, assignment, proposer)
            done.append(trial)
            self.store.update_job(self.job.id, elapsed_seconds=self.elapsed)
            self._tell(problem.goal, done, budget)
            return trial

        try:
            return run_search(
                searcher,
                evaluate,
                budget.runs,
                initial=initial_plans(problem),
                already=already,
                batch=BATCH,
                should_stop=lambda: deadline is not None and self.elapsed > deadline,
            )
        finally:
            searcher.close()

    def _evaluate(self, problem: Problem, profiled: Profiled, assignment: Assignment, proposer: str) -> Trial:
        plan = plan_of(
            self.prepared.discovery,
            self.prepared.context.architecture,
            profiled.profile,
            assignment,
            profiled.ranges,
        )
        cached = self.store.attach_run(self.job.id, self.context_key, plan.key, searcher=proposer)
        if cached is not None:
            return _trial(cached, assignment)
        started = time.perf_counter()
        run = self._run_kept(RunRequest(plan, proposer, "search", SEARCH_TIMING))
        self._measuring += time.perf_counter() - started
        return _trial(run, assignment)

    def _run_kept(self, request: RunRequest) -> Run:
        """Execute a plan and keep the run. One that took the process down before counts as failed."""
        place = (self.job.id, self.context_key, request.plan.key)
        attempts = self.store.begin_run(*place, fresh=request.fresh)
        try:
            if attempts >= MAX_ATTEMPTS:
                reason = f"the process died {attempts} times while this plan ran"
                run = failed_run(request, reason, 0.0)
            else:
                run = execute(self.prepared.measurer, request)
        except BaseException:
            self.store.abandon_run(*place, fresh=request.fresh)  # stopped, not died: the plan is not to blame
            raise
        self.store.finish_run(self.job.id, self.context_key, run)
        return run

    def _stored_trials(self, problem: Problem) -> list[Trial]:
        """Return the trials that this job finished before it was resumed, in order."""
        trials = []
        for run in self.store.job_runs(self.job.id):
            if not run.fresh:
                assignment = assignment_of(run.formats)
                if problem.space.feasible(assignment):
                    trials.append(_trial(run, assignment))
        return trials

    def _known_fresh_runs(self) -> dict[str, Run]:
        return {run.plan_key: run for run in self.store.job_runs(self.job.id) if run.fresh}

    def _phase(self, name: str, detail: str = "", share: float | None = None) -> None:
        if share is None:
            self.store.update_job(self.job.id, phase=name, elapsed_seconds=self.elapsed)
        self.progress.phase(name, detail, share)

    def _tell(self, goal: Goal, trials: list[Trial], budget: Budget) -> None:
        self.progress.standing(
            Standing(
                runs=len(trials),
                max_runs=budget.runs,
                seconds=self.elapsed,
                max_seconds=budget.seconds,
                best=best_trial(trials, goal),
                last=trials[-1] if trials else None,
            )
        )


def _trial(run: Run, assignment: Assignment) -> Trial:
    nan = float("nan")
    failed = run.status == "failed" or run.speedup is None
    return Trial(
        assignment=assignment,
        ok=not failed,
        time=nan if run.speedup is None else 1.0 / run.speedup,
        bytes=nan if run.held_bytes is None else float(run.held_bytes),
        drop=nan if run.quality_drop is None else run.quality_drop,
        searcher=run.searcher,
    )
