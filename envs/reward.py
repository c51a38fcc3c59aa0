"""The reward of an episode, the same for measured runs and for the surrogate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FAILED = -5.0
"""Reward of a plan that does not run; below that of any plan that does."""
OVER = 0.5
"""What breaking a limit costs at once, however little: as much as a speedup of 1.65 gains."""
WORST = -4.0
SMALLEST_LIMIT = 1e-9
"""Limits on the drop below this count as this, so that a limit of 0 has a scale."""


def reward(
    cost: Floats, drop: Floats, limit: Floats, memory: Floats, ok: NDArray[np.bool_] | bool = True
) -> Floats:
    """Return the rewards of finished plans; all arguments broadcast to `[B]`.

    The reward is the log of how many times cheaper the plan is than the baseline, less
    `OVER + log(excess)` for each limit that is broken.

    Args:
        cost: Relative time, or bytes relative to the baseline's.
        drop: Quality drop, absolute.
        limit: Limit on the drop, absolute.
        memory: Bytes held relative to the limit on bytes; 0 where there is no limit.
        ok: False where the plan failed; the figures do not matter then.
    """
    excess = drop / np.maximum(limit, SMALLEST_LIMIT)
    over = np.where(excess > 1, OVER + np.log(np.maximum(excess, 1.0)), 0.0)
    over = over + np.where(memory > 1, OVER + np.log(np.maximum(memory, 1.0)), 0.0)
    value = np.clip(-np.log(np.maximum(cost, 1e-3)) - over, WORST, -WORST)
    return np.asarray(np.where(ok, value, FAILED))
