"""The portfolio: all searchers on one budget, each learning from every run."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from autoprec.agents.evaluate import gain
from autoprec.agents.history import History
from autoprec.agents.searcher import Problem, Searcher, make_searcher
from autoprec.envs.space import Assignment, Trial

if TYPE_CHECKING:
    from autoprec.agents.policy_file import Policy

PRIOR: dict[str, tuple[float, float]] = {
    "ilp": (6.0, 2.0),
    "rl": (4.0, 4.0),
    "greedy": (1.0, 4.0),
    "hillclimb": (1.0, 4.0),
    "tpe": (0.5, 6.0),
    "nsga2": (0.5, 6.0),
}
"""Members, and how many improvements and failures to improve each is believed to have had before the first
run: what they do on synthetic landscapes (`autoprec bench searchers`), in round numbers."""
MEMORY = 0.95
"""What a run's outcome is worth one run later: who was right early may be wrong late."""
IMPROVEMENT = 1e-3
"""Smallest gain, as a share of the baseline's cost (or of the front's area), that counts as one."""


class Portfolio(Searcher):
    """Shares the budget among members by Thompson sampling of how often each improves the result.

    Every slot of a batch goes to the member with the highest draw from its Beta posterior, with old
    outcomes forgotten exponentially (discounted Thompson sampling, Raj and Kalyani 2017). Outcomes are
    read from the trials' `searcher`, so a resumed portfolio knows its members' record.

    Args:
        problem: The problem.
        seed: Seeds the draws and every member.
        members: Which searchers take part; those of `PRIOR` by default.
    """

    name = "portfolio"

    def __init__(self, problem: Problem, seed: int, members: Sequence[str] = tuple(PRIOR)) -> None:
        super().__init__(problem, seed)
        self._names = tuple(members)
        self._history = History(problem)
        self._members: dict[str, Searcher] = {}
        self._proposed: dict[Assignment, str] = {}
        self._wins = dict.fromkeys(members, 0.0)
        self._losses = dict.fromkeys(members, 0.0)
        self._score = 0.0

    def observe(self, trials: Sequence[Trial]) -> None:
        """Take in trials, credit their members and pass all of them to every member."""
        for trial in trials:
            before = self._score
            self._history.add([trial])
            self._score = gain(self.problem, self._history.trials)
            if trial.searcher in self._wins:
                for tally in (self._wins, self._losses):
                    for name in tally:
                        tally[name] *= MEMORY
                won = self._score > before + IMPROVEMENT
                (self._wins if won else self._losses)[trial.searcher] += 1
        for member in self._members.values():
            member.observe(trials)

    def propose(self, count: int) -> list[Assignment]:
        """Return up to `count` distinct plans that were not yet observed."""
        rng = np.random.default_rng([self.seed, len(self._history.trials), zlib.crc32(b"portfolio")])
        shares: dict[str, int] = {}
        for _ in range(count):
            draws = {name: rng.beta(*self._belief(name)) for name in self._names}
            winner = max(draws, key=lambda name: float(draws[name]))
            shares[winner] = shares.get(winner, 0) + 1
        self._proposed = {}
        for name, share in sorted(shares.items(), key=lambda item: -item[1]):
            taken = 0
            # Members do not know of each other's plans in this batch: ask for spare ones.
            for plan in self._member(name).propose(share + len(self._proposed)):
                if taken < share and plan not in self._proposed:
                    self._proposed[plan] = name
                    taken += 1
        return list(self._proposed)

    def proposer(self, assignment: Assignment) -> str:
        """Return the member that proposed a plan of the last batch."""
        return self._proposed.get(assignment, self.name)

    def policy(self) -> Policy | None:
        """Return what the member that trains a policy has trained so far."""
        return next((found for member in self._members.values() if (found := member.policy())), None)

    def close(self) -> None:
        """Close every member."""
        for member in self._members.values():
            member.close()
        self._members = {}

    def _belief(self, name: str) -> tuple[float, float]:
        wins, losses = PRIOR.get(name, (1.0, 1.0))
        return wins + self._wins[name], losses + self._losses[name]

    def _member(self, name: str) -> Searcher:
        """Return a member, made when its first turn comes: some are slow to start."""
        if name not in self._members:
            self._members[name] = make_searcher(name, self.problem, self.seed)
            self._members[name].observe(self._history.trials)
        return self._members[name]
