"""Searchers compared at equal budgets of measured runs, on landscapes that replay.

What a search found is judged by the landscape's own figures without noise, where it has any: a plan that was
lucky in the search is no better for it. Costs are shares of the baseline's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from autoprec.agents.acquisition import FRONT_LIMITS, neighbours
from autoprec.agents.evaluate import hypervolume, run_search
from autoprec.agents.searcher import Problem, make_searcher
from autoprec.agents.warm_start import initial_plans
from autoprec.envs.space import (
    Assignment,
    Goal,
    Objective,
    Profile,
    SearchSpace,
    Trial,
    pareto_front,
)
from autoprec.envs.synthetic import SyntheticLandscape

Task = Literal["limit", "front"]
TASKS: tuple[Task, ...] = ("limit", "front")
REACH = 10.0
"""Drops up to this many limits count in the hypervolume; costs up to the baseline's."""
CLIMBED = 60
"""Most steps of the local search that improves the best known plan of each limit."""


class Replayed(Protocol):
    """What searches are compared on: `Landscape`, `Replay`, `SyntheticLandscape`, or one that measures."""

    @property
    def name(self) -> str:
        """What was recorded, for people."""

    @property
    def space(self) -> SearchSpace:
        """The search space."""

    @property
    def profile(self) -> Profile:
        """Its profile."""

    @property
    def max_quality_drop(self) -> float:
        """The limit that it is usually searched under, absolute."""

    def evaluate(self, assignment: Assignment, searcher: str) -> Trial:
        """Return the measured run of a plan."""

    @property
    def identity(self) -> str:
        """A name that no other landscape has."""


@dataclass(frozen=True)
class Search:
    """One search, as figures.

    Attributes:
        landscape: Its name.
        searcher: Its name.
        task: `limit`: the cheapest plan within the limit; `front`: every limit.
        seed: Its seed.
        costs: Cost of the best plan within the limit after each run; infinity until there is one.
        areas: Hypervolume after each run, of cost × drop in units of the limit, up to `REACH`.
        front: (cost, drop, plan) of its Pareto front.
        thinking: Seconds of thinking for each run that the searcher proposed.
    """

    landscape: str
    searcher: str
    task: str
    seed: int
    costs: tuple[float, ...]
    areas: tuple[float, ...]
    front: tuple[tuple[float, float, Assignment], ...]
    thinking: float

    def to_data(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return asdict(self) | {"costs": [None if np.isinf(cost) else cost for cost in self.costs]}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Search:
        """Return what `to_data` gave."""
        return cls(
            **data
            | {
                "costs": tuple(float("inf") if cost is None else cost for cost in data["costs"]),
                "areas": tuple(data["areas"]),
                "front": tuple((cost, drop, tuple(plan)) for cost, drop, plan in data["front"]),
            }
        )


def goal_of(landscape: Replayed, task: Task, objective: Objective = "latency") -> Goal:
    """Return the goal of a task on a landscape."""
    return Goal(objective, landscape.max_quality_drop, whole_front=task == "front")


def search(landscape: Replayed, task: Task, name: str, seed: int, runs: int, objective: Objective) -> Search:
    """Search a landscape with one searcher for so many runs, the first plans of every search included."""
    goal = goal_of(landscape, task, objective)
    problem = Problem(landscape.space, landscape.profile, goal)
    first = initial_plans(problem)
    searcher = make_searcher(name, problem, seed)
    answering = 0.0

    def evaluate(plan: Assignment, proposer: str) -> Trial:
        nonlocal answering
        asked = time.perf_counter()
        trial = landscape.evaluate(plan, proposer)
        answering += time.perf_counter() - asked
        return trial

    began = time.perf_counter()
    try:
        trials = run_search(searcher, evaluate, runs, initial=first)
    finally:
        searcher.close()
    thinking = (time.perf_counter() - began - answering) / max(1, len(trials) - len(first))
    judged = scaled(landscape, truth(landscape, trials), objective)
    return Search(
        landscape=landscape.name,
        searcher=name,
        task=task,
        seed=seed,
        costs=tuple(
            np.minimum.accumulate([t.time if t.ok and t.drop <= 1 else np.inf for t in judged]).tolist()
        ),
        areas=tuple(area(judged[: count + 1]) for count in range(len(judged))),
        front=tuple((t.time, t.drop, t.assignment) for t in pareto_front(judged, _SCALED)),
        thinking=thinking,
    )


def truth(landscape: Replayed, trials: Sequence[Trial]) -> list[Trial]:
    """Return trials with the landscape's figures without noise, where it knows them; NaN there: it fails."""
    figures = getattr(landscape, "figures", None)
    if figures is None or not trials:
        return list(trials)
    time, drop = figures(np.array([trial.assignment for trial in trials], np.intp))
    return [
        replace(trial, ok=bool(np.isfinite(t)), time=float(t), drop=float(d)) if trial.ok else trial
        for trial, t, d in zip(trials, time, drop, strict=True)
    ]


_SCALED = Goal("latency", 1.0)
"""The goal in scaled figures: cost stands in the place of time, and drops are in units of the limit."""


def scaled(landscape: Replayed, trials: Sequence[Trial], objective: Objective) -> list[Trial]:
    """Return trials whose `time` is the share of the baseline's cost, and `drop` in units of the limit."""
    limit = max(landscape.max_quality_drop, 1e-12)
    start = float(landscape.profile.baseline_bytes) if objective == "memory" else 1.0
    return [
        replace(t, time=(t.bytes if objective == "memory" else t.time) / start, drop=t.drop / limit)
        for t in trials
    ]


def area(trials: Sequence[Trial]) -> float:
    """Return the hypervolume of scaled trials: of cost below the baseline's × drop below `REACH` limits."""
    return hypervolume(trials, _SCALED, (1.0, REACH))


@dataclass(frozen=True)
class Known:
    """The best that is known of a landscape.

    Attributes:
        cost: Cost of the best plan within the limit; 1 (the baseline's) where none is better.
        area: Hypervolume of everything known.
    """

    cost: float
    area: float


def best_known(landscape: Replayed, searches: Sequence[Search], objective: Objective) -> Known:
    """Return the best that all searches of a landscape found.

    A complete landscape knows all its plans. On a synthetic one, whose law is the truth, the best plan of the
    union within each of a spread of limits is changed one unit at a time while that makes it cheaper; a law
    that was fitted to runs is not climbed, since a search of it would find where it is wrong.
    """
    complete = getattr(landscape, "trials", None)
    if complete is not None:
        trials = scaled(landscape, complete, objective)
    else:
        found = {plan: (cost, drop) for s in searches for cost, drop, plan in s.front}
        trials = [Trial(plan, True, cost, np.nan, drop, "known") for plan, (cost, drop) in found.items()]
        exact = isinstance(landscape, SyntheticLandscape)
        for limit in np.unique(FRONT_LIMITS) if exact else ():
            within = [trial for trial in trials if trial.drop <= limit]
            if within:
                trials += _climbed(landscape, min(within, key=lambda t: t.time), float(limit), objective)
    costs = [trial.time for trial in trials if trial.ok and trial.drop <= 1]
    return Known(cost=min([1.0, *costs]), area=area(trials))


def _climbed(landscape: Replayed, start: Trial, limit: float, objective: Objective) -> list[Trial]:
    """Return the plans of a local search over the law: the best change of one unit each time."""
    path = []
    for _ in range(CLIMBED):
        around = neighbours(landscape.space, np.array(start.assignment, np.intp))
        if not len(around):
            break
        judged = scaled(landscape, truth(landscape, _asked(landscape, around)), objective)
        better = [t for t in judged if t.ok and t.drop <= limit and t.time < start.time - 1e-9]
        if not better:
            break
        start = min(better, key=lambda t: t.time)
        path.append(start)
    return path


def _asked(landscape: Replayed, plans: NDArray[np.intp]) -> list[Trial]:
    rows = np.arange(plans.shape[1])
    change = (
        landscape.profile.bytes[rows, plans] - landscape.profile.bytes[rows, list(landscape.space.baseline)]
    )
    held = landscape.profile.baseline_bytes + change.sum(axis=1)
    return [
        Trial(tuple(plan), True, np.nan, float(size), np.nan, "known")
        for plan, size in zip(plans.tolist(), held, strict=True)
    ]


@dataclass(frozen=True)
class Scores:
    """What one search is worth beside the best known, each at a budget of runs.

    Attributes:
        regret: Share of the possible gain within the limit that was missed, 0 to 1.
        area: Share of the best known hypervolume.
    """

    regret: float
    area: float


def scores(found: Search, known: Known, runs: int) -> Scores:
    """Return the scores of a search after so many runs (or all it made, where the space has no more)."""
    at = min(runs, len(found.costs)) - 1
    possible = max(1.0 - known.cost, 1e-12)
    cost = min(found.costs[at], 1.0)
    return Scores(
        regret=float(np.clip((cost - known.cost) / possible, 0.0, 1.0)) if known.cost < 1 else 0.0,
        area=min(found.areas[at] / known.area, 1.0) if known.area > 0 else 1.0,
    )


def runs_to(found: Search, known: Known, share: float = 0.95) -> int | None:
    """Return after how many runs a share of the best known was reached, or `None` where it never was.

    That is a share of the hypervolume in a search for the front, of the possible gain in one for a limit.
    """
    for runs in range(1, len(found.costs) + 1):
        got = scores(found, known, runs)
        if (got.area if found.task == "front" else 1 - got.regret) >= share:
            return runs
    return None
