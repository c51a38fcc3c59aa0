"""One runtime's part of a tuning job: its profile, its search, and its winners measured again."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

import numpy as np

from autoprec.agents.evaluate import INITIAL, run_search
from autoprec.agents.policy_choice import starting_policy
from autoprec.agents.policy_file import Policy
from autoprec.agents.searcher import LEARNERS, Problem, Searcher, make_searcher
from autoprec.agents.warm_start import initial_plans
from autoprec.envs.measure import SEARCH_TIMING
from autoprec.envs.plans import assignment_of
from autoprec.envs.search_space import search_space
from autoprec.envs.slicing import SliceFirst
from autoprec.envs.space import Assignment, Goal, Trial
from autoprec.envs.surrogate import Surrogate
from autoprec.errors import StoreError
from autoprec.execute import RunRequest, failed_run, trial_of
from autoprec.fresh import FreshMeasuring, Verdict
from autoprec.plan import EAGER
from autoprec.profiling import MAX_ATTEMPTS, ToProfile
from autoprec.settings import TuneSettings
from autoprec.station import Measuring, StationLostError
from autoprec.store.records import JOB_POLICY, Run
from autoprec.store.store import Store

BATCH = 4
"""Plans measured between two rounds of thinking."""
PROFILE_SHARE = 0.5
"""Share of a budget in time after which no further kernel is profiled; each runtime has its part of it."""
CLAIM_SECONDS = 300.0
"""How long other jobs wait for a run that this one has begun, before they take its process to be dead."""
CLAIM_PAUSE = 0.5


@dataclass
class JobParts:
    """What the searches of one job share.

    Attributes:
        job_id: The job.
        settings: What was asked for.
        store: Where everything that is measured goes, as it is measured.
        station: Measures.
        goal: What is searched for.
        seconds: The budget in wall time, or `None`.
        elapsed: Returns the wall seconds that the job has used.
        heard: Hears of every trial.
        phase: Hears what is done: phase, detail, share.
        note: Hears what the user should know.
        drop_dominated: Leave out formats that another beats in every respect; see `search_space`.
        slices: Judge plans that lose far too much on a slice of the data only, where the workload offers it.
        measuring: Seconds spent in measured runs of searches.
        lock: Held where several threads measure at once and one changes what they share.
    """

    job_id: str
    settings: TuneSettings
    store: Store
    station: Measuring
    goal: Goal
    seconds: float | None
    elapsed: Callable[[], float]
    heard: Callable[[Trial], None]
    phase: Callable[[str, str, float | None], None]
    note: Callable[[str], None]
    drop_dominated: bool = True
    slices: bool = True
    measuring: float = field(default=0.0)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def policy(self) -> Policy | None:
        """What a searcher that learns starts from: chosen once, so that what is passed over is noted once."""
        learns = self.settings.searcher in LEARNERS
        return starting_policy(self.store, self.note, self.job_id) if learns else None


class RuntimeSearch:
    """Searches the plans of one runtime. Several threads may evaluate plans at once.

    Args:
        parts: What the searches of the job share.
        runtime: Name of the runtime.
        to_profile: How many runtimes are still to be profiled, this one included.

    Attributes:
        name: Name of the runtime.
        trials: Every trial so far, in order.

    Raises:
        RuntimeRefusedError: The runtime is not installed or cannot run the model.
    """

    def __init__(self, parts: JobParts, runtime: str, to_profile: int = 1) -> None:
        self.name = runtime
        self._parts = parts
        settings, facts = parts.settings, parts.station.facts
        left = math.inf if parts.seconds is None else PROFILE_SHARE * parts.seconds - parts.elapsed()
        wanted = ToProfile(
            runtime=runtime,
            goal=parts.goal,
            formats=settings.formats,
            seconds=left / to_profile,
            budget=parts.seconds if len(settings.runtimes) > 1 else None,
            anew=settings.fresh,
        )
        self.context, self.profiled, _ = parts.station.profile(wanted)
        self.context_key = parts.store.save_context(self.context)
        space = search_space(
            facts.discovery,
            self.profiled.profile,
            parts.goal,
            settings.formats,
            drop_dominated=parts.drop_dominated,
        )
        self.problem = Problem(space, self.profiled.profile, parts.goal, parts.policy)
        self._slices = SliceFirst(parts.goal, parts.note, used=parts.slices and facts.has_slices)
        self.trials = self._stored_trials()
        for trial in self.trials:
            parts.heard(trial)

    def evaluate(self, assignment: Assignment, proposer: str) -> Trial:
        """Measure a plan and keep the run, or take it over from the store where it holds one."""
        parts = self._parts
        plan = self.profiled.plan(parts.station.facts.discovery, self.context.architecture, assignment)
        # What every search begins with is judged on all of the data: it says how far a slice can be trusted.
        judged_for = None if proposer == INITIAL else proposer
        enough = math.inf if judged_for is None else self._slices.far
        run = None if parts.settings.fresh else self._shared(plan.key, proposer, enough)
        seconds = 0.0
        if run is None:
            started = time.perf_counter()
            request = RunRequest(
                plan, proposer, "search", SEARCH_TIMING, slices=self._slices, judged_for=judged_for
            )
            run = self._run_kept(request)
            seconds = time.perf_counter() - started
        with parts.lock:
            parts.measuring += seconds
            trial = self._learnt(run, assignment)
            parts.heard(trial)
        return trial

    def _shared(self, plan_key: str, proposer: str, enough: float) -> Run | None:
        """Take a run over from the store, or claim it for this job; where another measures it, wait."""
        store, place = self._parts.store, (self._parts.job_id, self.context_key, plan_key)
        while True:
            run = store.attach_run(*place, searcher=proposer, sliced_above=enough)
            if run is not None:
                return run
            if store.claim_run(*place, seconds=CLAIM_SECONDS):
                # Another may have finished it between the two.
                run = store.attach_run(*place, searcher=proposer, sliced_above=enough)
                if run is not None:
                    store.abandon_run(*place, fresh=False)
                return run
            time.sleep(CLAIM_PAUSE)

    def scout(self, plan: Assignment) -> float:
        """Measure a plan, where that was not done yet, and return what it costs; infinity where it fails."""
        if all(trial.assignment != plan for trial in self.trials):
            self.trials.append(self.evaluate(plan, INITIAL))
        (found,) = (trial for trial in self.trials if trial.assignment == plan)
        return found.cost(self._parts.goal) if found.ok else math.inf

    def expected_cost(self, plan: Assignment) -> float:
        """Return what a plan is expected to cost, by the profile and what was measured."""
        goal = self._parts.goal
        found = Surrogate(self.problem.space, self.problem.profile, goal).fit(self.trials)
        expected = found.predict(np.array([plan]))
        return float((expected.bytes if goal.objective == "memory" else expected.time_mean)[0])

    def search(
        self, runs: int | None, should_stop: Callable[[], bool], searcher: Searcher | None = None
    ) -> None:
        """Search until so many trials were made in all, or it is to stop.

        A searcher starts from nothing each time, and is told what was measured before; by default it is the
        one that the settings name.
        """
        settings = self._parts.settings
        searcher = searcher or make_searcher(settings.searcher, self.problem, settings.seed)
        try:
            self.trials = run_search(
                searcher,
                self.evaluate,
                runs,
                initial=initial_plans(self.problem),
                already=self.trials,
                batch=BATCH,
                should_stop=should_stop,
                workers=self._parts.station.slots,
            )
            self._keep_policy(searcher)
        except KeyboardInterrupt:
            self._keep_policy(searcher)
            raise
        finally:
            searcher.close()

    def run_seconds(self) -> float:
        """Return what a measured run took in all, the median over this runtime's own.

        Those taken over from other jobs count only where there are no others: the machine may have been busy.
        """
        runs = self._parts.store.job_runs(self._parts.job_id, context_key=self.context_key)
        searched = [run for run in runs if not run.fresh]
        own = [run for run in searched if not run.cached]
        return median([run.wall_seconds for run in own or searched] or [0.0])

    def decide(
        self, limit: float | None, measured_runs: int, seconds_left: Callable[[], float], *, whole: bool
    ) -> Verdict:
        """Measure the winners again; see `FreshMeasuring`."""
        runs = self._parts.store.job_runs(self._parts.job_id, context_key=self.context_key)
        fresh = FreshMeasuring(
            self._parts.station.facts,
            self.context,
            self.profiled,
            self.problem,
            limit,
            self._run_kept,
            measured_runs,
            {run.plan_key: run for run in runs if run.fresh},
            seconds_left,
        )
        return fresh.decide(
            self.trials, lambda what, share: self._phase("measuring winners", what, share), whole=whole
        )

    def _keep_policy(self, searcher: Searcher) -> None:
        learnt = searcher.policy()
        if learnt is not None:
            self.problem = replace(self.problem, policy=learnt)
            meta = {**learnt.meta, "training": {**learnt.meta["training"], "runtime": self.name}}
            name = f"{JOB_POLICY}{self._parts.job_id}"
            try:
                self._parts.store.save_policy(name, meta, learnt.weights, replace=True)
            except StoreError as error:  # the runs are what counts
                self._parts.note(f"what the search has learnt is not kept: {error}")

    def _phase(self, name: str, detail: str, share: float | None) -> None:
        shown = detail if self.name == EAGER else f"{self.name}: {detail}"
        self._parts.phase(name, shown, share)

    def _learnt(self, run: Run, assignment: Assignment) -> Trial:
        """Return a run as searchers see it, after learning from it what a slice is worth."""
        slices, drop, share = self._slices, run.quality_drop, run.quality_share
        proposer = None if run.searcher == INITIAL else run.searcher
        slices.learn(drop, share, run.slice_drop, proposer=proposer)
        return trial_of(run, assignment, 0.0 if drop is None else slices.error(drop, share))

    def _run_kept(self, request: RunRequest) -> Run:
        """Execute a plan and keep the run. One that took the process down before counts as failed."""
        store = self._parts.store
        place = (self._parts.job_id, self.context_key, request.plan.key)
        while True:
            attempts = store.begin_run(*place, fresh=request.fresh)
            try:
                if attempts >= MAX_ATTEMPTS:
                    reason = f"the process died {attempts} times while this plan ran"
                    run = failed_run(request, reason, 0.0)
                else:
                    run = self._parts.station.run(request)
            except StationLostError as error:
                self._parts.note(str(error))
                continue  # the attempt stays counted
            except BaseException:
                store.abandon_run(*place, fresh=request.fresh)  # stopped, not died: the plan is not to blame
                raise
            store.finish_run(self._parts.job_id, self.context_key, run)
            return run

    def _stored_trials(self) -> list[Trial]:
        """Return the trials that this job finished before it was resumed, in order."""
        trials = []
        for run in self._parts.store.job_runs(self._parts.job_id, context_key=self.context_key):
            if not run.fresh:
                assignment = assignment_of(run.formats)
                if self.problem.space.feasible(assignment):
                    trials.append(self._learnt(run, assignment))
        return trials
