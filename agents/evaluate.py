"""Running a search, and how well it did."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoprec.agents.parallel import search_in_parallel
from autoprec.agents.searcher import Problem, Searcher
from autoprec.envs.space import Assignment, Goal, Trial, best_trial, pareto_front

INITIAL = "initial"
"""Who proposed what is measured before a searcher is asked."""


def run_search(
    searcher: Searcher,
    evaluate: Callable[[Assignment, str], Trial],
    budget: int | None,
    *,
    initial: Sequence[Assignment] = (),
    already: Sequence[Trial] = (),
    batch: int = 4,
    should_stop: Callable[[], bool] = lambda: False,
    workers: int = 1,
) -> list[Trial]:
    """Search until the budget is spent, the space is exhausted or `should_stop` says so.

    Args:
        searcher: Proposes; it must not have observed anything yet.
        evaluate: Measures a plan; its second argument is who proposed it. Called once a plan. What it
            returns is final: keep it safe in there.
        budget: Most trials in all, those in `already` included; `None` for no limit but `should_stop`.
        initial: Plans measured before the searcher is asked, unless they are in `already`.
        already: Trials of an earlier run of this search, in order, to go on from.
        batch: Most plans asked for at once; the searcher learns between batches.
        should_stop: Asked before every run.
        workers: Most plans measured at once: `evaluate` is called by as many threads, and the searcher learns
            from each plan as it ends. With one, searching and measuring never happen at the same time.

    Returns:
        Every trial, `already` first.
    """
    trials = list(already)
    searcher.observe(trials)
    seen = {trial.assignment for trial in trials}

    def measure(plans: Sequence[Assignment], names: Sequence[str]) -> bool:
        """Measure plans and let the searcher observe each batch; return whether to go on."""
        done: list[Trial] = []
        try:
            for plan, name in zip(plans, names, strict=True):
                if should_stop() or (budget is not None and len(trials) >= budget):
                    return False
                trial = evaluate(plan, name)
                seen.add(plan)
                trials.append(trial)
                done.append(trial)
        finally:
            searcher.observe(done)
        return True

    first = [plan for plan in dict.fromkeys(initial) if plan not in seen]
    if workers > 1:
        search_in_parallel(
            searcher,
            evaluate,
            budget,
            initial=[(plan, INITIAL) for plan in first],
            trials=trials,
            workers=workers,
            should_stop=should_stop,
        )
        return trials
    if not measure(first, [INITIAL] * len(first)):
        return trials
    while budget is None or len(trials) < budget:
        if should_stop():
            break
        plans = searcher.propose(batch if budget is None else min(batch, budget - len(trials)))
        if not plans or not measure(plans, [searcher.proposer(plan) for plan in plans]):
            break
    return trials


def hypervolume(trials: Sequence[Trial], goal: Goal, reference: tuple[float, float]) -> float:
    """Return the area between the Pareto front and a reference point (cost, drop).

    Drops below 0 count as 0: a plan that measured better than the baseline is no better than lossless.
    Plans beyond the reference add nothing.
    """
    cost_limit, drop_limit = reference
    area, height = 0.0, drop_limit
    for trial in pareto_front(trials, goal):
        cost, drop = trial.cost(goal), max(trial.drop, 0.0)
        if cost < cost_limit and drop < height:
            area += (cost_limit - cost) * (height - drop)
            height = drop
    return area


def gain(problem: Problem, trials: Sequence[Trial]) -> float:
    """Return the share of the baseline's cost that the trials save, 0 where no plan meets the goal.

    For a whole front it is the share of the area between the baseline's cost and 10 times the goal's limit
    that the front takes.
    """
    goal = problem.goal
    start = float(problem.profile.baseline_bytes) if goal.objective == "memory" else 1.0
    if goal.whole_front:
        reach = 10 * max(goal.max_quality_drop, 1e-9)
        return hypervolume(trials, goal, (start, reach)) / max(start * reach, 1e-300)
    best = best_trial(trials, goal)
    return 0.0 if best is None else 1 - best.cost(goal) / max(start, 1e-300)
