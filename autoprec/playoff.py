"""Which runtime's best plan wins: the close ones are timed against each other, not only against PyTorch.

Runs below a millisecond depend on how two threads of PyTorch find each other: the same model as it came takes
0.35 ms or 0.72 ms for seconds on end (`docs/figures.md`). Ratios to it, taken at different times, then differ
by a factor of two; two candidates that are timed against each other do not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from autoprec.envs.measure import FRESH_TIMING, Measurer
from autoprec.envs.space import Goal
from autoprec.errors import CandidateError
from autoprec.fresh import MIN_SECONDS, plan_cost
from autoprec.plan import Plan

CLOSE = 2.2
"""A plan that costs this many times what the cheapest one does cannot be the fastest."""


def fastest(
    measurer: Measurer, plans: Mapping[str, Plan], goal: Goal, seconds_left: Callable[[], float]
) -> tuple[str, list[str]]:
    """Return the name of the runtime with the fastest plan, and what was found, in sentences.

    The leader by fresh figures meets each other plan that is close, in a measurement of the two; the faster
    one stays. Memory is known exactly, so nothing is measured for a memory goal.

    Args:
        measurer: Executes the plans; their runtimes are in use.
        plans: The plan of each runtime, at least one, with fresh evidence. A runtime in which nothing is
            faster than the model as it came has the plan that changes nothing, in eager PyTorch.
        goal: Says what is made small.
        seconds_left: What is left of the time budget: a quarter of it goes into each meeting.
    """
    leader, *others = sorted(plans, key=lambda name: plan_cost(plans[name], goal))
    if goal.objective == "memory":
        return leader, []
    notes: list[str] = []
    most = CLOSE * plan_cost(plans[leader], goal)
    for other in others:
        if plan_cost(plans[other], goal) > most:
            break
        if plans[other].key == plans[leader].key:
            continue
        seconds = min(FRESH_TIMING.max_seconds, max(MIN_SECONDS, seconds_left() / 4))
        timing = replace(FRESH_TIMING, max_seconds=seconds)
        try:
            with measurer.executable(plans[leader]) as first, measurer.executable(plans[other]) as second:
                found = measurer.time(first, second, timing)
        except CandidateError as error:
            notes.append(f"{leader} and {other} could not be timed together: {error}")
            continue
        notes.append(
            f"timed against each other, {other} runs at {found.ratio:.3f}x ({found.low:.3f} to "
            f"{found.high:.3f}) of the speed of {leader}"
        )
        if found.low > 1.0:
            leader = other
    return leader, notes
