"""Random search: the floor that every other searcher has to beat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from autoprec.agents.history import HistorySearcher, random_plan


class RandomSearcher(HistorySearcher):
    """Draws every unit's format uniformly."""

    name = "random"

    def _candidates(self, count: int, rng: np.random.Generator) -> Iterable[Sequence[int]]:
        return (random_plan(self.problem.space, rng) for _ in range(count))
