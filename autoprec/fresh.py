"""The last word on a search: its winners measured again, fresh, before they are called winners.

The luckiest noise of a search wins it, so no figure of the search goes on a plan. Winners are timed longer,
against the model as it came and against the best lossless plan, and judged on held-out data where the
workload has any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autoprec.agents.searcher import Problem
from autoprec.agents.warm_start import cheapest_plan
from autoprec.envs.measure import FRESH_TIMING
from autoprec.envs.plans import as_given
from autoprec.envs.profile import Profiled
from autoprec.envs.space import Assignment, Goal, Trial, non_dominated, pareto_front
from autoprec.errors import CandidateError
from autoprec.execute import RunRequest
from autoprec.facts import Facts
from autoprec.plan import AS_GIVEN, Evidence, Interval, Plan, Quality
from autoprec.store.records import Context, Run

UNSURE = 1.25
"""Ratio of the ends of a speedup's interval from which a job says that it is unsure."""
WANTED = 3
"""Plans that hold the goal when measured fresh, before the best of them is called best."""
ATTEMPTS = 8
FRONT_SIZE = 6
"""Members of the Pareto front that are measured fresh, spread evenly."""

MIN_SECONDS = 1.0
"""Timing of a plan whose turn comes when the time budget is spent."""


@dataclass(frozen=True)
class Verdict:
    """What the fresh measurements say.

    Attributes:
        best: The plan for the goal; `None` where none meets it.
        lossless: The best lossless plan; the one that changes nothing where no other is faster (smaller).
        front: The Pareto front of everything that was measured fresh, cheapest first.
        bound: The fastest (smallest) plan that was measured fresh, whatever its quality; every unit in its
            fastest format was among them. `None` where that one was not measured.
        notes: What the user should know.
    """

    best: Plan | None
    lossless: Plan
    front: tuple[Plan, ...]
    bound: Plan | None
    notes: tuple[str, ...]


class FreshMeasuring:
    """Measures the winners of one search again.

    Args:
        facts: The workload.
        context: What the figures hold for.
        profiled: Its profile.
        problem: The space, the profile and the goal of the search.
        max_quality_drop: The limit the user gave, absolute, or `None`.
        measure: Executes a plan and keeps the run.
        measured_runs: How many runs the search measured, for the evidence.
        known: Fresh runs of this job from before it was resumed, by plan key: not measured again.
        seconds_left: Returns what is left of the time budget. When it is spent, only the lossless plan and
            the first plan that holds are still measured.
    """

    def __init__(
        self,
        facts: Facts,
        context: Context,
        profiled: Profiled,
        problem: Problem,
        max_quality_drop: float | None,
        measure: Callable[[RunRequest], Run],
        measured_runs: int,
        known: dict[str, Run],
        seconds_left: Callable[[], float],
    ) -> None:
        self.facts = facts
        self.context = context
        self.profiled = profiled
        self.problem = problem
        self.goal = problem.goal
        self._limit = max_quality_drop
        self._measure = measure
        self._runs = measured_runs
        self._as_given = as_given(facts.discovery, context.architecture)
        self._reference: Plan | None = None
        self._known = known
        self._seconds_left = seconds_left
        self._split = facts.split
        self._done: dict[str, Plan | None] = {}
        self._reason: str | None = None

    def decide(
        self, trials: Sequence[Trial], progress: Callable[[str, float], None], *, whole: bool = True
    ) -> Verdict:
        """Measure the lossless plan, the bound, the best candidates and the front, and decide.

        Args:
            trials: What was measured in the search.
            progress: Hears what is measured, and the share that is done.
            whole: False leaves out all but the lossless plan: of a runtime that was not searched.

        Raises:
            CandidateError: Even the plan that changes nothing fails.
        """
        notes: list[str] = []
        progress("best lossless plan", 0.0)
        lossless = self._best_lossless(notes)
        if not whole:
            trials = [trial for trial in trials if trial.assignment == self.problem.space.baseline]
        ranked = sorted((t for t in trials if t.meets(self.goal)), key=lambda trial: trial.cost(self.goal))
        holding: list[Plan] = []
        for attempt, trial in enumerate(ranked[:ATTEMPTS]):
            progress("best plans", 0.1 + 0.5 * attempt / ATTEMPTS)
            plan = self._measured(self._plan(trial.assignment), trial.searcher)
            if plan is not None and self._holds(plan):
                holding.append(plan)
            elif plan is not None and plan.evidence is not None:
                notes.append(
                    "a plan within the limit in the search has a drop of "
                    f"{plan.evidence.quality.drop:.4g} on the {self._split} data: passed over"
                )
            if len(holding) >= WANTED or (holding and self._spent()):
                break
        progress("unconstrained bound", 0.65)
        cheapest = cheapest_plan(self.problem)
        failed = any(trial.assignment == cheapest and not trial.ok for trial in trials)
        bounded = (
            whole
            and not failed
            and not self._spent()
            and self._measured(self._plan(cheapest), "bound") is not None
        )
        front = pareto_front(trials, self.goal)
        picked = (
            [front[round(i * (len(front) - 1) / max(1, FRONT_SIZE - 1))] for i in range(FRONT_SIZE)]
            if front
            else []
        )
        for index, trial in enumerate(picked):
            if self._spent():
                notes.append("the time for measuring again ended before all of the Pareto front was")
                break
            progress("Pareto front", 0.7 + 0.3 * index / FRONT_SIZE)
            self._measured(self._plan(trial.assignment), trial.searcher)
        best = self._best(holding, lossless, notes)
        measured = [plan for plan in self._done.values() if plan is not None]
        # What is fastest unit by unit need not be fastest together: the search may have found better.
        bound = min(measured, key=lambda plan: plan_cost(plan, self.goal)) if bounded else None
        fresh_front = non_dominated(
            measured, lambda plan: plan_cost(plan, self.goal), lambda plan: _evidence(plan).quality.drop
        )
        return Verdict(best, lossless, tuple(fresh_front), bound, tuple(dict.fromkeys(notes)))

    def _best(self, holding: Sequence[Plan], lossless: Plan, notes: list[str]) -> Plan | None:
        # Members of the front were measured fresh too: the best of everything that holds is the best.
        everything = {
            plan.key: plan for plan in (*holding, *self._done.values()) if plan and self._holds(plan)
        }
        if not everything:
            smallest = min(
                (plan for plan in self._done.values() if plan), key=lambda plan: _evidence(plan).plan_bytes
            )
            notes.append(
                "no measured plan meets the goal; the smallest holds "
                f"{_evidence(smallest).plan_bytes / 1e6:.3g} MB at a drop of "
                f"{_evidence(smallest).quality.drop:.4g}"
            )
            return None
        best = min(everything.values(), key=lambda plan: plan_cost(plan, self.goal))
        if self.goal.objective != "memory" and best.key != lossless.key and self._holds(lossless):
            over = _evidence(best).speedup_over_lossless
            if over is not None and over.low <= 1.0:
                notes.append(
                    "precision gains nothing here: the fastest plan within the limit is "
                    f"{over.value:.3f}x ({over.low:.3f} to {over.high:.3f}) the best lossless plan, so the "
                    "lossless plan is called best"
                )
                best = lossless
        speedup = _evidence(best).speedup
        if speedup.high > UNSURE * speedup.low:
            notes.append(
                f"the best plan's speedup is unsure ({speedup.low:.2f}x to {speedup.high:.2f}x): "
                "something else may have used the machine; autoprec check measures it again"
            )
        if self.goal.objective == "memory" and speedup.high < 1.0:
            notes.append(
                f"the best plan is smaller and slower: it runs at {speedup.value:.3f}x ({speedup.low:.3f} to "
                f"{speedup.high:.3f}) of the speed of the model as it came"
            )
        if best.key == self._as_given.key:
            notes.append("nothing that was measured is better than the model as it came: leave it as it is")
        return best

    def _best_lossless(self, notes: list[str]) -> Plan:
        """Measure the lossless plan, and where that is no better than the model as it came, that one."""
        kernels = self._plan(self.problem.space.baseline)
        changed = kernels.key != self._as_given.key
        found = self._measured(kernels, "lossless") if changed else None
        if found is not None:
            evidence = _evidence(found)
            faster = evidence.speedup.value > 1.0
            smaller = evidence.baseline_bytes - evidence.plan_bytes
            if smaller > 0 or (smaller == 0 and faster) if self.goal.objective == "memory" else faster:
                self._reference = kernels
                return found
            notes.append(
                f"other kernels for the same numbers gain nothing here: together they run at "
                f"{evidence.speedup.value:.3f}x ({evidence.speedup.low:.3f} to {evidence.speedup.high:.3f})"
            )
        unchanged = self._measured(self._as_given, AS_GIVEN)
        if unchanged is None:
            raise CandidateError(f"even the plan that changes nothing fails: {self._reason}")
        self._reference = self._as_given
        return unchanged

    def _holds(self, plan: Plan) -> bool:
        evidence = _evidence(plan)
        return evidence.quality.drop <= self.goal.max_quality_drop and (
            self.goal.max_bytes is None or evidence.plan_bytes <= self.goal.max_bytes
        )

    def _plan(self, assignment: Assignment) -> Plan:
        return self.profiled.plan(self.facts.discovery, self.context.architecture, assignment)

    def _measured(self, plan: Plan, searcher: str) -> Plan | None:
        """Return the plan with its fresh evidence; `None` where it fails. Each plan is measured once."""
        if plan.key not in self._done:
            run = self._known.get(plan.key) or self._run(plan, searcher)
            if run.status == "ok":
                self._done[plan.key] = plan.model_copy(update={"evidence": self._evidence_of(run)})
            else:
                self._done[plan.key], self._reason = None, run.reason
        return self._done[plan.key]

    def _run(self, plan: Plan, searcher: str) -> Run:
        # A quarter of what is left each time: the first, which matter most, are timed the longest.
        seconds = min(FRESH_TIMING.max_seconds, max(MIN_SECONDS, self._seconds_left() / 4))
        timing = replace(FRESH_TIMING, max_seconds=seconds)
        # What changes nothing is the baseline of every run already.
        lossless = None if self._reference is self._as_given else self._reference
        return self._measure(RunRequest(plan, searcher, self._split, timing, fresh=True, lossless=lossless))

    def _spent(self) -> bool:
        return self._seconds_left() <= 0

    def _evidence_of(self, run: Run) -> Evidence:
        facts, context = self.facts, self.context
        speedup = _interval(run.speedup, run.speedup_low, run.speedup_high)
        over = _interval(run.over_lossless, run.over_lossless_low, run.over_lossless_high)
        if over is None and self._reference is self._as_given:
            over = speedup
        assert speedup is not None and run.baseline_seconds is not None and run.plan_seconds is not None
        assert run.held_bytes is not None and run.quality is not None and run.quality_drop is not None
        return Evidence(
            workload=context.workload,
            fingerprint=context.fingerprint,
            weights=facts.weights,
            objective=self.goal.objective,
            max_quality_drop=self._limit,
            baseline_ms=run.baseline_seconds * 1e3,
            plan_ms=run.plan_seconds * 1e3,
            speedup=speedup,
            speedup_over_lossless=over,
            baseline_bytes=facts.baseline_bytes,
            plan_bytes=run.held_bytes,
            quality=Quality(
                metric=facts.quality_name,
                split=self._split,
                baseline=facts.quality[self._split],
                plan=run.quality,
                drop=run.quality_drop,
                reported={
                    name: (facts.reported[name], value)
                    for name, value in run.reported.items()
                    if name in facts.reported
                },
            ),
            shapes=context.shapes,
            # The plan that changes nothing is the model as it came, whatever the others run in.
            device=(facts.context if run.searcher == AS_GIVEN else context).device,
            searcher=run.searcher,
            measured_runs=self._runs,
            pairs=run.pairs,
            measured_at=run.measured_at.isoformat(timespec="seconds"),
        )


def plan_cost(plan: Plan, goal: Goal) -> float:
    """Return what the goal makes small, from a plan's evidence: bytes, or relative time."""
    evidence = _evidence(plan)
    return float(evidence.plan_bytes) if goal.objective == "memory" else 1.0 / evidence.speedup.value


def _interval(value: float | None, low: float | None, high: float | None) -> Interval | None:
    if value is None or low is None or high is None:
        return None
    return Interval(value=value, low=low, high=high)


def _evidence(plan: Plan) -> Evidence:
    assert plan.evidence is not None, "only plans that were measured come here"
    return plan.evidence
