"""One runtime's part of a tuning job: its profile, its search, and its winners measured again."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from statistics import median

import numpy as np
import torch

from autoprec.agents.evaluate import INITIAL, run_search
from autoprec.agents.policy_choice import starting_policy
from autoprec.agents.policy_file import Policy
from autoprec.agents.searcher import LEARNERS, Problem, Searcher, make_searcher
from autoprec.agents.warm_start import initial_plans
from autoprec.envs.landscape import Landscape
from autoprec.envs.measure import SEARCH_TIMING
from autoprec.envs.plans import assignment_of
from autoprec.envs.profile import LATE, REFINING, Profiled, profile_workload
from autoprec.envs.search_space import search_space, unusable
from autoprec.envs.slicing import SliceFirst
from autoprec.envs.space import FORMAT_NAMES, Assignment, Goal, Trial
from autoprec.envs.surrogate import Surrogate
from autoprec.errors import RuntimeRefusedError, StoreError
from autoprec.execute import RunRequest, execute, failed_run, trial_of
from autoprec.fresh import FreshMeasuring, Verdict
from autoprec.kernels.calibration import calibrations_from_data, calibrations_to_data
from autoprec.kernels.registry import Level, feasible
from autoprec.plan import COMPILE, EAGER
from autoprec.prepare import Prepared
from autoprec.runtimes.available import GRAPH_RUNTIMES
from autoprec.settings import TuneSettings
from autoprec.store.records import JOB_POLICY, Run
from autoprec.store.store import Store

BATCH = 4
"""Plans measured between two rounds of thinking."""
PROFILE_SHARE = 0.5
"""Share of a budget in time after which no further kernel is profiled; each runtime has its part of it."""
COMPILE_SHARE = 0.01
"""Share of a budget in time that compiling for the timed inputs may take where runtimes are compared: judging
quality at other shapes then takes about twice as long again."""
MAX_ATTEMPTS = 2
"""A plan whose run was begun this often and never ended took the process down: it counts as failed."""


@dataclass
class JobParts:
    """What the searches of one job share.

    Attributes:
        job_id: The job.
        settings: What was asked for.
        store: Where everything that is measured goes, as it is measured.
        prepared: The workload.
        goal: What is searched for.
        seconds: The budget in wall time, or `None`.
        elapsed: Returns the wall seconds that the job has used.
        heard: Hears of every trial.
        phase: Hears what is done: phase, detail, share.
        note: Hears what the user should know.
        drop_dominated: Leave out formats that another beats in every respect; see `search_space`.
        slices: Judge plans that lose far too much on a slice of the data only, where the workload offers it.
        measuring: Seconds spent in measured runs of searches.
        profiles: Runtime to its profile, and the kernels for which there was no time, as they are made.
    """

    job_id: str
    settings: TuneSettings
    store: Store
    prepared: Prepared
    goal: Goal
    seconds: float | None
    elapsed: Callable[[], float]
    heard: Callable[[Trial], None]
    phase: Callable[[str, str, float | None], None]
    note: Callable[[str], None]
    drop_dominated: bool = True
    slices: bool = True
    measuring: float = field(default=0.0)
    profiles: dict[str, tuple[Profiled, list[str]]] = field(default_factory=dict)

    @cached_property
    def policy(self) -> Policy | None:
        """What a searcher that learns starts from: chosen once, so that what is passed over is noted once."""
        learns = self.settings.searcher in LEARNERS
        return starting_policy(self.store, self.note, self.job_id) if learns else None


class RuntimeSearch:
    """Searches the plans of one runtime.

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
        left = math.inf if parts.seconds is None else PROFILE_SHARE * parts.seconds - parts.elapsed()
        self._passes = 0
        self._profile_until = parts.elapsed() + left / to_profile
        parts.prepared.use_runtime(runtime)
        self.context = parts.prepared.context_for(runtime)
        self.context_key = parts.store.save_context(self.context)
        self._check_formats()
        self.profiled = self._profile()
        space = search_space(
            parts.prepared.discovery,
            self.profiled.profile,
            parts.goal,
            parts.settings.formats,
            drop_dominated=parts.drop_dominated,
        )
        self.problem = Problem(space, self.profiled.profile, parts.goal, parts.policy)
        self._slices = SliceFirst(parts.prepared.measurer, parts.goal, parts.note, used=parts.slices)
        self.trials = self._stored_trials()
        for trial in self.trials:
            parts.heard(trial)

    def evaluate(self, assignment: Assignment, proposer: str) -> Trial:
        """Measure a plan and keep the run, or take it over from the store where it holds one."""
        parts = self._parts
        plan = self.profiled.plan(parts.prepared.discovery, self.context.architecture, assignment)
        # What every search begins with is judged on all of the data: it says how far a slice can be trusted.
        judged_for = None if proposer == INITIAL else proposer
        enough = math.inf if judged_for is None else self._slices.far
        run = parts.store.attach_run(
            parts.job_id, self.context_key, plan.key, searcher=proposer, sliced_above=enough
        )
        if run is None:
            started = time.perf_counter()
            judge = partial(self._slices.judge, proposer=judged_for)
            run = self._run_kept(RunRequest(plan, proposer, "search", SEARCH_TIMING, judge=judge))
            parts.measuring += time.perf_counter() - started
        trial = self._learnt(run, assignment)
        parts.heard(trial)
        return trial

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
            self._parts.prepared,
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
        attempts = store.begin_run(*place, fresh=request.fresh)
        try:
            if attempts >= MAX_ATTEMPTS:
                reason = f"the process died {attempts} times while this plan ran"
                run = failed_run(request, reason, 0.0)
            else:
                run = execute(self._parts.prepared.measurer, request)
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

    def _check_formats(self) -> None:
        """Refuse formats that no unit has here before the profile, which takes much longer, tells the same.

        Raises:
            SettingError: A format that was asked for is native in no unit; says why.
        """
        prepared = self._parts.prepared
        own = {unit.baseline for unit in prepared.discovery.units}
        for name in sorted({*(self._parts.settings.formats or ())} - own):
            supports = []
            for module in prepared.discovery.modules:
                if self.name in GRAPH_RUNTIMES:
                    supports.append(prepared.graph_runtime(self.name).support(module.operation, name))
                else:
                    weight = prepared.measurer.model.get_submodule(module.path).weight
                    assert isinstance(weight, torch.Tensor)
                    supports.append(feasible(module.operation, module.shapes, weight.device)[name])
            if all(support.level is not Level.NATIVE for support in supports):
                raise unusable(name, supports[0].reason or supports[0].level)

    def _profile(self) -> Profiled:
        """Return the stored profile of this workload here, or make one, and keep it where it is whole."""
        profiled, late = self._kept(self.name, self.context_key)
        if late:
            self._parts.note(
                f"{self.name}: its part of the time budget ended before {len(late)} kernels were profiled, "
                "so they are left out; give a longer budget"
            )
        return profiled

    def _kept(self, runtime: str, context_key: str) -> tuple[Profiled, list[str]]:
        """Return the profile of a runtime, made once a job, and the kernels for which there was no time."""
        profiles = self._parts.profiles
        if runtime not in profiles:
            profiles[runtime] = self._load_or_make(runtime, context_key)
        return profiles[runtime]

    def _load_or_make(self, runtime: str, context_key: str) -> tuple[Profiled, list[str]]:
        parts, prepared = self._parts, self._parts.prepared
        units = [[unit.name, [module.path for module in unit.modules]] for unit in prepared.discovery.units]
        memory = parts.goal.objective == "memory"
        key = hashlib.sha256(json.dumps([units, memory, FORMAT_NAMES]).encode()).hexdigest()[:32]
        stored = parts.store.load_profile(context_key, key)
        if stored is not None:
            calibrations = calibrations_from_data(stored["calibrations"])
            landscape = Landscape.from_data(stored["landscape"], "stored profile")
            return Profiled(landscape.profile, calibrations, runtime), []
        profiled, late = self._make_profile(runtime)
        if not late:
            space = search_space(prepared.discovery, profiled.profile, parts.goal, None)
            reference = prepared.loaded.reference
            landscape = Landscape(reference, space, profiled.profile, (), False, parts.goal.max_quality_drop)
            calibrations = calibrations_to_data(profiled.calibrations)
            payload = {"landscape": landscape.to_data(), "calibrations": calibrations}
            parts.store.save_profile(context_key, key, payload)
        return profiled, late

    def _make_profile(self, runtime: str) -> tuple[Profiled, list[str]]:
        """Profile a runtime; return with it the names of kernels for which there was no time."""
        parts, prepared = self._parts, self._parts.prepared
        late: list[str] = []

        def progress(what: str, share: float) -> None:
            self._phase("profiling", what, share)

        def guard(what: str) -> AbstractContextManager[str]:
            return self._guard(what, late)

        if runtime == EAGER:
            profiled = profile_workload(
                prepared.measurer,
                prepared.discovery,
                parts.goal.objective,
                prepared.calibration,
                progress=progress,
                guard=guard,
                seen=prepared.seen,
            )
            return profiled, late
        if runtime == COMPILE:
            from autoprec.envs.compile_profile import profile_compiled  # importing dynamo takes a second

            eager, late = self._kept(EAGER, parts.store.save_context(prepared.context))
            profiled, seconds = profile_compiled(
                prepared.measurer, prepared.discovery, eager, self.context.architecture, progress
            )
            self._check_affordable(seconds)
            return profiled, late
        from autoprec.envs.graph_profile import profile_graph  # needs packages that are optional

        profiled = profile_graph(
            prepared.measurer,
            prepared.discovery,
            prepared.graph_runtime(runtime),
            self.context.architecture,
            parts.goal.objective,
            prepared.calibration,
            progress=progress,
            guard=guard,
            seen=prepared.seen,
        )
        return profiled, late

    def _check_affordable(self, seconds: float) -> None:
        """Leave a comparison of runtimes where compiling one candidate takes too much of its time."""
        budget = self._parts.seconds
        if len(self._parts.settings.runtimes) > 1 and budget is not None and seconds > COMPILE_SHARE * budget:
            raise RuntimeRefusedError(
                f"compiling one candidate took {seconds:.0f} s, more than {COMPILE_SHARE:.0%} of the time "
                f"budget ({budget:.0f} s): give a longer one, or --runtime {COMPILE}"
            )

    @contextmanager
    def _guard(self, what: str, late: list[str]) -> Iterator[str]:
        """Leave out a kernel for which there is no time, or that took the process down.

        The first is profiled however late it is: without any format there is nothing to search.
        """
        parts = self._parts
        self._passes += 1
        if parts.elapsed() > self._profile_until and self._passes > 1:
            if not what.startswith(REFINING):
                late.append(what)
            yield LATE
            return
        place = (parts.job_id, self.context_key, f"profile {what}")
        attempts = parts.store.begin_run(*place, fresh=False)
        if attempts >= MAX_ATTEMPTS:
            yield f"the process died {attempts} times while it was profiled"
            return
        try:
            yield ""
        finally:
            parts.store.abandon_run(*place, fresh=False)
