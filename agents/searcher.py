"""The contract of a searcher, and the registry of searchers by name."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoprec.envs.space import Assignment, Goal, Profile, SearchSpace, Trial
from autoprec.errors import SettingError

if TYPE_CHECKING:
    from autoprec.agents.policy_file import Policy


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that a searcher may know before the first measured run.

    Attributes:
        space: The search space.
        profile: Its profile.
        goal: What is searched for.
        policy: What earlier training left, for searchers that start from a policy; `None` for the shipped
            one.
    """

    space: SearchSpace
    profile: Profile
    goal: Goal
    policy: Policy | None = None


class Searcher(ABC):
    """Proposes plans to measure.

    The caller owns the trials: it measures what `propose` returns and passes *every* finished trial of
    the job, whoever proposed it, to `observe`, in order. A searcher that is made again after a kill
    and has observed the same trials goes on as well as before. With one seed and one history, proposals
    are the same. Not thread-safe.
    """

    name: str

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem = problem
        self.seed = seed

    @abstractmethod
    def observe(self, trials: Sequence[Trial]) -> None:
        """Take in trials that have finished since the last call."""

    @abstractmethod
    def propose(self, count: int) -> list[Assignment]:
        """Return up to `count` distinct plans that were not yet observed.

        An empty list says that the searcher has nothing left to try.
        """

    def proposer(self, assignment: Assignment) -> str:
        """Return who is credited with a plan of the last `propose`: itself, or a portfolio's member."""
        return self.name

    def policy(self) -> Policy | None:
        """Return the policy as trained so far; `None` where none is, as with most searchers."""
        return None

    def close(self) -> None:  # noqa: B027  (optional: most searchers hold nothing)
        """Free what the searcher holds. Calling it twice is allowed."""


_SEARCHERS = {
    "portfolio": "autoprec.agents.portfolio:Portfolio",
    "rl": "autoprec.agents.rl:RLSearcher",
    "ilp": "autoprec.agents.ilp:ILPSearcher",
    "greedy": "autoprec.agents.greedy:GreedySearcher",
    "hillclimb": "autoprec.agents.hillclimb:HillClimbSearcher",
    "tpe": "autoprec.agents.optuna_searchers:TPESearcher",
    "nsga2": "autoprec.agents.optuna_searchers:NSGA2Searcher",
    "random": "autoprec.agents.random_search:RandomSearcher",
}

SEARCHERS: tuple[str, ...] = tuple(_SEARCHERS)

LEARNERS: tuple[str, ...] = ("portfolio", "rl")
"""Those that start from `Problem.policy`."""


def make_searcher(name: str, problem: Problem, seed: int) -> Searcher:
    """Return a new searcher.

    Raises:
        SettingError: The name is unknown.
    """
    if name not in _SEARCHERS:
        raise SettingError(f"unknown searcher {name!r}; use one of {', '.join(SEARCHERS)}")
    module, _, attribute = _SEARCHERS[name].partition(":")
    searcher: Searcher = getattr(importlib.import_module(module), attribute)(problem, seed)
    return searcher
