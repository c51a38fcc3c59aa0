"""How much of the possible gain a search missed, where the optimum is known."""

import numpy as np

from autoprec.envs.space import best_trial


def regret(trials, goal, optimum):
    """Return the share of the gain from the baseline to the optimum's cost that was missed, 0 to 1."""
    best = best_trial(trials, goal)
    possible = 1.0 - optimum.cost(goal)
    if best is None:
        return 1.0
    if possible <= 0:
        return 0.0
    return float(np.clip((best.cost(goal) - optimum.cost(goal)) / possible, 0.0, 1.0))
