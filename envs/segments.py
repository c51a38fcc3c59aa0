"""The whole model in a fixed number of tokens: what an agent sees beyond the unit that it decides.

Units are pooled along the depth into at most `SEGMENTS` segments of nearly equal size; a model of fewer units
has a segment for each. So the observation is the same size for every model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoprec.envs.additive import Floats
from autoprec.envs.prices import Prices
from autoprec.envs.space import FEATURES, FORMAT_NAMES, Profile, SearchSpace
from autoprec.kernels.formats import FORMATS

SEGMENTS = 32
"""Most segments; of 1 000 units each then pools 31 or 32."""
SEGMENT_FEATURES: tuple[str, ...] = (
    "filled", *FEATURES, "log_units", "choices", "to_save", "saved", "damage", "risk", "spread", "bits",
    "margin",
)  # fmt: skip
"""Columns of the observation `segments`, one row a segment, means over its units. What does not change in an
episode only: `saved`, `damage`, `risk` (damage times its spread), `bits` and `margin` (to the next best) are
those of the choice that the relaxed knapsack makes at the price of the episode's start."""
PROGRESS_FEATURES: tuple[str, ...] = ("here", "decided", "spent", "gained")
"""Columns of the observation `progress`, one row a segment: whether the unit to decide lies in it, the share
of its units that are decided, their damage as a share of the budget, and what they save of all that is
possible."""
_KNAPSACK = 1 + len(FEATURES) + 2
_LARGEST = 10.0


class Segments:
    """Pools what is known of each unit, and keeps the books of what was decided where.

    Args:
        space: The search space.
        profile: Its profile.
        saved: `[U, K]` what each choice saves, in the currency of the objective.
        possible: What all units can save together.
        damage: `[U, K]` expected damage of each choice.
        spread: `[U, K]` standard deviation of its log.
        prices: The going prices.
    """

    def __init__(
        self,
        space: SearchSpace,
        profile: Profile,
        saved: Floats,
        possible: float,
        damage: Floats,
        spread: Floats,
        prices: Prices,
    ) -> None:
        units = len(space.units)
        self._filled = min(units, SEGMENTS)
        self.of_unit = np.arange(units) * self._filled // units
        """`[U]` the segment of each unit."""
        self._starts = np.searchsorted(self.of_unit, np.arange(self._filled))
        self._sizes = np.diff(np.append(self._starts, units)).astype(np.float64)
        self._mask, self._saved, self._damage = space.mask, saved * units / possible, damage
        self._share = possible / units
        self._spread = np.minimum(spread, 2.0)
        self._units, self._prices = units, prices
        self._bits = np.array([FORMATS[name].bits for name in FORMAT_NAMES]) / 32
        best = np.maximum(np.where(space.mask, self._saved, 0.0).max(axis=1), 0.0)
        self._constant = np.zeros((SEGMENTS, len(SEGMENT_FEATURES)))
        known = self._constant[: self._filled]
        known[:, 0] = 1.0
        known[:, 1 : 1 + len(FEATURES)] = self._pool(profile.features.astype(np.float64).T).T
        known[:, _KNAPSACK - 2] = np.log10(self._sizes)
        known[:, _KNAPSACK - 1] = self._pool(space.mask.sum(axis=1) / 8.0)
        known[:, _KNAPSACK] = self._pool(best)

    def features(self, budgets: Floats) -> NDArray[np.float32]:
        """Return the tokens `[B, SEGMENTS, len(SEGMENT_FEATURES)]` under budgets `[B]` of damage."""
        distinct, which = np.unique(budgets, return_inverse=True)
        table = np.repeat(self._constant[None], len(distinct), axis=0)
        for row, (budget, price) in enumerate(zip(distinct, self._prices.at(distinct), strict=True)):
            table[row, : self._filled, _KNAPSACK + 1 :] = self._pool(self._knapsack(budget, price)).T
        return np.asarray(np.clip(table, -_LARGEST, _LARGEST)[which], np.float32)

    def start(self, count: int) -> None:
        """Begin `count` episodes."""
        self._spent = np.zeros((count, SEGMENTS))
        self._gained = np.zeros((count, SEGMENTS))

    def decide(self, unit: int, actions: NDArray[np.intp]) -> None:
        """Book the choices `[B]` of a unit."""
        segment = self.of_unit[unit]
        self._spent[:, segment] += self._damage[unit, actions]
        self._gained[:, segment] += self._saved[unit, actions] / self._units

    def progress(self, position: int, budgets: Floats) -> NDArray[np.float32]:
        """Return `[B, SEGMENTS, len(PROGRESS_FEATURES)]` before the unit at `position` is decided."""
        table = np.zeros((len(budgets), SEGMENTS, len(PROGRESS_FEATURES)))
        if position < self._units:
            table[:, self.of_unit[position], 0] = 1.0
        table[:, : self._filled, 1] = np.clip((position - self._starts) / self._sizes, 0.0, 1.0)
        table[..., 2] = np.log1p(np.minimum(self._spent / budgets[:, None], 1e4))
        table[..., 3] = self._gained
        return np.asarray(np.clip(table, -_LARGEST, _LARGEST), np.float32)

    def _knapsack(self, budget: float, price: float) -> Floats:
        """Return the columns after `to_save` of each unit, `[6, U]`."""
        rows = np.arange(self._units)
        share = self._damage * (self._units / budget)
        value = np.where(
            self._mask, self._saved - price * budget / (self._share * self._units) * share, -np.inf
        )
        pick = value.argmax(axis=1)
        best = value[rows, pick]
        value[rows, pick] = -np.inf
        other = value.max(axis=1)
        margin = np.where(np.isfinite(other), np.minimum(best - other, _LARGEST), 0.0)
        damage = np.minimum(share[rows, pick], 1e4)
        spread = self._spread[rows, pick]
        return np.stack(
            [
                self._saved[rows, pick], np.log1p(damage), np.log1p(damage * spread), spread,
                self._bits[pick], np.log1p(np.maximum(margin, 0.0)),
            ]
        )  # fmt: skip

    def _pool(self, values: Floats) -> Floats:
        """Return the means over each segment of values `[..., U]`."""
        return np.asarray(np.add.reduceat(values, self._starts, axis=-1) / self._sizes)
