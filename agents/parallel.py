"""A search that measures several plans at once, on as many devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from autoprec.agents.searcher import Searcher
from autoprec.envs.space import Assignment, Trial

PATIENCE = 0.5
"""Seconds between two looks at whether to stop while nothing ends."""


def search_in_parallel(
    searcher: Searcher,
    evaluate: Callable[[Assignment, str], Trial],
    budget: int | None,
    *,
    initial: Sequence[tuple[Assignment, str]],
    trials: list[Trial],
    workers: int,
    should_stop: Callable[[], bool],
) -> None:
    """Go on with a search, with up to `workers` plans measured at once; see `run_search`.

    The searcher is told of each trial as it ends. When no plan waits to be measured it is asked for as many
    as there are devices: so no device waits for a slower one, and one round of thinking serves all.

    Args:
        searcher: Proposes; it has observed `trials`.
        evaluate: Measures a plan; called by several threads.
        budget: Most trials in all, or `None`.
        initial: Plans measured first, and who proposed them.
        trials: Every trial so far; those that end are appended, in the order in which they do.
        workers: Most plans measured at once.
        should_stop: Asked before every run; runs in flight are waited for.
    """
    queue = deque(initial)
    seen = {trial.assignment for trial in trials}
    flying: dict[Future[Trial], Assignment] = {}
    asked_in_vain = False
    pool = ThreadPoolExecutor(workers, thread_name_prefix="measure")
    try:
        while True:
            room = workers - len(flying)
            stop = should_stop() or (budget is not None and len(trials) + len(flying) >= budget)
            if not stop and room and not queue and not asked_in_vain:
                known = seen.union(flying.values())
                # What is being measured was not observed, so it may well be proposed again.
                plans = searcher.propose(workers + len(flying))
                queue.extend((plan, searcher.proposer(plan)) for plan in plans if plan not in known)
                asked_in_vain = not queue
            while not stop and len(flying) < workers and queue:
                plan, name = queue.popleft()
                flying[pool.submit(evaluate, plan, name)] = plan
                stop = budget is not None and len(trials) + len(flying) >= budget
            if not flying:
                return
            done, _ = wait(flying, timeout=PATIENCE, return_when=FIRST_COMPLETED)
            ended = [future.result() for future in done]
            for future in done:
                seen.add(flying.pop(future))
            if ended:
                trials.extend(ended)
                searcher.observe(ended)
                asked_in_vain = False
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
