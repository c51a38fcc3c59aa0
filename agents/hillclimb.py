"""Hill climbing: small random changes of the best plan so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from autoprec.agents.acquisition import neighbours
from autoprec.agents.history import HistorySearcher
from autoprec.agents.warm_start import harmless_plan


class HillClimbSearcher(HistorySearcher):
    """Tries changes of one unit that the profile calls cheaper, then of two, then any.

    It starts from the best plan so far: for a whole front, from a random plan of the front. It looks at
    the profile's costs only, never at its errors: the model-free referee among the searchers.
    """

    name = "hillclimb"

    def _candidates(self, count: int, rng: np.random.Generator) -> Iterable[Sequence[int]]:
        best = self.history.best()
        base = best.assignment if best else harmless_plan(self.problem)
        front = self.history.front()
        if self.problem.goal.whole_front and front:
            base = front[int(rng.integers(len(front)))].assignment
        return self._moves(np.array(base, np.intp), count, rng)

    def _moves(self, base: np.ndarray, count: int, rng: np.random.Generator) -> Iterator[Sequence[int]]:
        space, profile = self.problem.space, self.problem.profile
        cost = profile.bytes.astype(float) if self.problem.goal.objective == "memory" else profile.time
        rows = np.arange(len(base))
        singles = neighbours(space, base)
        if not len(singles):
            return
        saved = np.nan_to_num(cost[rows, base].sum() - cost[rows, singles].sum(axis=1))
        yield from (singles[index].tolist() for index in rng.permutation(len(singles)) if saved[index] > 0)
        for _ in range(20 * count):
            first, second = rng.choice(len(singles), 2)
            pair = np.where(singles[second] != base, singles[second], singles[first])
            if np.nan_to_num(cost[rows, base].sum() - cost[rows, pair].sum()) > 0:
                yield pair.tolist()
        yield from (singles[index].tolist() for index in rng.permutation(len(singles)))
