"""The going price of damage: what the relaxed knapsack pays for a little more of the budget."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoprec.envs.additive import Floats


class Prices:
    """The price of damage in the relaxed knapsack over the units from one position on.

    Each unit is walked once, along the upper hull of its choices, so that the cost is linear in the units.

    Args:
        saved: `[U, K]` what each choice saves.
        damage: `[U, K]` the damage of each choice.
        mask: `[U, K]` which choices are allowed.
    """

    def __init__(self, saved: Floats, damage: Floats, mask: NDArray[np.bool_]) -> None:
        steps = [
            (ratio, more, unit)
            for unit, allowed in enumerate(mask)
            for ratio, more in _hull_steps(saved[unit][allowed], damage[unit][allowed])
        ]
        ordered = np.array(sorted(steps, reverse=True), np.float64).reshape(-1, 3)
        self._ratio, self._damage, self._unit = ordered.T

    def at(self, budgets: Floats, position: int = 0) -> Floats:
        """Return the saving per damage of the step that budgets `[B]` run out in; 0 where none does.

        Only the units from `position` on take part.
        """
        waiting = self._unit >= position
        spent = np.cumsum(self._damage[waiting])
        return np.asarray(np.append(self._ratio[waiting], 0.0)[np.searchsorted(spent, budgets)])


def _hull_steps(saved: Floats, damage: Floats) -> list[tuple[float, float]]:
    """Return (saving per damage, damage) of the steps along the upper hull of one unit's choices."""
    free = damage <= 0
    here_saved, here_damage = (float(saved[free].max()), 0.0) if free.any() else (0.0, 0.0)
    steps: list[tuple[float, float]] = []
    while True:
        better = (saved > here_saved) & (damage > here_damage)
        if not better.any():
            return steps
        ratio = np.where(better, (saved - here_saved) / np.where(better, damage - here_damage, 1.0), -np.inf)
        pick = int(np.argmax(ratio))
        steps.append((float(ratio[pick]), float(damage[pick] - here_damage)))
        here_saved, here_damage = float(saved[pick]), float(damage[pick])
