"""Episodes over a search space: one step a unit, many episodes at once, and what the agent sees of them.

This is the core that the Gymnasium environments share; the spaces do not depend on the model, so one policy
serves every model with the same vocabulary of formats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from autoprec.envs.additive import Floats, Ints
from autoprec.envs.prices import Prices
from autoprec.envs.reward import SMALLEST_LIMIT
from autoprec.envs.segments import PROGRESS_FEATURES, SEGMENT_FEATURES, SEGMENTS, Segments
from autoprec.envs.space import FEATURES, FORMAT_NAMES, OBJECTIVES, Goal, Profile, SearchSpace
from autoprec.envs.surrogate import Surrogate
from autoprec.errors import SettingError

FORMAT_FEATURES: tuple[str, ...] = (
    "time_saved", "bytes_saved", "damage_of_budget", "damage_of_rest", "damage_spread", "worth", "charge",
    "allowed",
)  # fmt: skip
"""Columns of the observation `formats`, one row a format. `worth` is the saving as a share of all that is
possible, `charge` the damage at the going `price`; the relaxed knapsack takes the best difference."""
TOTAL_FEATURES: tuple[str, ...] = (
    "budget_spent", "saved", "still_to_save", "position", "price", "log_limit", "root",
    *OBJECTIVES, "has_memory_limit", "memory_headroom",
)  # fmt: skip
"""Columns of the observation `totals`. `price` is the log of what a share of the budget is worth in shares
of the possible saving, from the relaxed knapsack over the units still to come."""
GOAL_FEATURES: tuple[str, ...] = (
    "price", "log_limit", "root", *OBJECTIVES, "has_memory_limit", "memory_headroom", "log_units",
)  # fmt: skip
"""Columns of the observation `goal`: what is asked for in the episode, and where it starts. Like `segments`
it does not change in an episode, so that a policy encodes both once."""
STATIC = ("goal", "segments")
"""The observations that do not change in an episode."""
BOUND = 10.0

Observation = dict[str, NDArray[np.float32]]


def observation_space() -> spaces.Dict:
    """Return the space of one observation, the same for every model."""
    formats = len(FORMAT_NAMES)
    return spaces.Dict(
        {
            "unit": _box(len(FEATURES)),
            "formats": _box(formats, len(FORMAT_FEATURES)),
            "totals": _box(len(TOTAL_FEATURES)),
            "goal": _box(len(GOAL_FEATURES)),
            "segments": _box(SEGMENTS, len(SEGMENT_FEATURES)),
            "progress": _box(SEGMENTS, len(PROGRESS_FEATURES)),
            "action_mask": spaces.Box(0.0, 1.0, (formats,), np.float32),
        }
    )


def action_space() -> spaces.Discrete[np.int64]:
    """Return the space of actions: the index of a format in the vocabulary."""
    return spaces.Discrete(len(FORMAT_NAMES))


def _box(*shape: int) -> spaces.Box:
    return spaces.Box(-BOUND, BOUND, shape, np.float32)


@dataclass(frozen=True)
class Beliefs:
    """What the agent is told to expect of each choice: the mode of a surrogate.

    Attributes:
        saved_time: `[U, K]` relative time that a choice saves against the baseline's format.
        saved_bytes: `[U, K]` the same in bytes, as a share of the baseline's.
        damage: `[U, K]` damage, in units of drop to the power `1 / root`.
        spread: `[U, K]` standard deviation of its log.
        root: The power that summed damage is raised to.
    """

    saved_time: Floats
    saved_bytes: Floats
    damage: Floats
    spread: Floats
    root: float

    @classmethod
    def of(cls, surrogate: Surrogate) -> Beliefs:
        """Return what a surrogate expects."""
        rows = np.arange(len(surrogate.space.units))
        time = surrogate.time_table
        return cls(
            saved_time=time[rows, list(surrogate.space.baseline)][:, None] - time,
            saved_bytes=-surrogate.byte_table / max(surrogate.profile.baseline_bytes, 1),
            damage=surrogate.damage_table,
            spread=surrogate.damage_log_std,
            root=surrogate.root,
        )


class Episodes:
    """`B` episodes that walk through the units together.

    Args:
        space: The search space.
        profile: Its profile.
        goal: Objective and limit on bytes; the limit on the drop is each episode's own.
        beliefs: What the agent is told.

    Attributes:
        plans: `[B, U]` the formats chosen so far, the baseline's for units still to come.
        limits: `[B]` the limit on the drop of each episode.
        position: How many units have been decided.
    """

    def __init__(self, space: SearchSpace, profile: Profile, goal: Goal, beliefs: Beliefs) -> None:
        self.space = space
        self.goal = goal
        self._beliefs = beliefs
        self._saved = beliefs.saved_bytes if goal.objective == "memory" else beliefs.saved_time
        allowed = np.where(space.mask, self._saved, -np.inf)
        best = np.maximum(allowed.max(axis=1), 0.0)
        # Possible saving of the units from each position on; the first entry is the whole model's.
        self._to_save = np.append(np.cumsum(best[::-1])[::-1], 0.0)
        self._possible = max(float(self._to_save[0]), 1e-9)
        self._prices = Prices(self._saved, beliefs.damage, space.mask)
        self._segments = Segments(
            space, profile, self._saved, self._possible, beliefs.damage, beliefs.spread, self._prices
        )
        self._static = self._static_features()
        self._unit = np.clip(profile.features, -BOUND, BOUND).astype(np.float32)
        self._baseline_bytes = max(profile.baseline_bytes, 1)
        smallest = np.where(space.mask, -beliefs.saved_bytes, np.inf).min(axis=1)
        self._least_bytes = np.append(np.cumsum(smallest[::-1])[::-1], 0.0)
        self.position = 0
        self.reset(np.array([goal.max_quality_drop]))

    def reset(self, limits: Floats) -> None:
        """Start `B` new episodes with limits `[B]`."""
        self.limits = np.maximum(limits, 0.0)
        self._budget = np.maximum(self.limits, SMALLEST_LIMIT) ** (1 / self._beliefs.root)
        self.plans: Ints = np.repeat(np.array([self.space.baseline], np.intp), len(limits), axis=0)
        self._spent = np.zeros(len(limits))
        self._gained = np.zeros(len(limits))
        self._bytes = np.zeros(len(limits))
        self.position = 0
        self._segments.start(len(limits))
        self._tokens = self._segments.features(self._budget)
        self._goal = self._goal_features()

    @property
    def done(self) -> bool:
        """Whether every unit has been decided."""
        return self.position == len(self.space.units)

    def step(self, actions: Ints) -> None:
        """Decide the next unit: `actions` `[B]` are format indices.

        Raises:
            SettingError: An action is not allowed for the unit; the message names it and what is.
        """
        unit = self.position
        allowed = self.space.mask[unit]
        actions = np.asarray(actions)
        in_range = (actions >= 0) & (actions < len(allowed))
        if not (in_range.all() and allowed[actions].all()):
            bad = next(int(a) for a in actions if not (0 <= a < len(allowed) and allowed[a]))
            name = FORMAT_NAMES[bad] if 0 <= bad < len(allowed) else "no format"
            raise SettingError(
                f"action {bad} ({name}) is masked for unit {self.space.units[unit]!r}; expected one of "
                + ", ".join(f"{k} ({FORMAT_NAMES[k]})" for k in self.space.choices(unit))
            )
        self.plans[:, unit] = actions
        self._spent += self._beliefs.damage[unit, actions]
        self._gained += self._saved[unit, actions]
        self._bytes -= self._beliefs.saved_bytes[unit, actions]
        self._segments.decide(unit, actions)
        self.position += 1

    def observe(self) -> Observation:
        """Return the observations `[B, ...]`; after the last unit, only the totals mean anything."""
        count, formats = len(self.limits), len(FORMAT_NAMES)
        unit = self.position
        rest = np.maximum(self._budget - self._spent, 0.0)
        if self.done:
            price = np.zeros(count)
            table = np.zeros((count, formats, len(FORMAT_FEATURES)), np.float32)
            features = np.zeros((count, len(FEATURES)), np.float32)
            mask = np.ones((count, formats), np.float32)
        else:
            price = self._prices.at(rest, unit) * self._budget / self._possible
            table = self._format_features(unit, rest, price)
            features = np.repeat(self._unit[unit][None], count, axis=0)
            mask = np.repeat(self.space.mask[unit][None].astype(np.float32), count, axis=0)
        return {
            "unit": features,
            "formats": table,
            "totals": self._total_features(price),
            "goal": self._goal,
            "segments": self._tokens,
            "progress": self._segments.progress(unit, self._budget),
            "action_mask": mask,
        }

    def _static_features(self) -> Floats:
        table = np.zeros((*self.space.mask.shape, len(FORMAT_FEATURES)))
        table[..., 0] = _squash(self._beliefs.saved_time)
        table[..., 1] = _squash(self._beliefs.saved_bytes)
        table[..., 4] = self._beliefs.spread / 2
        table[..., 5] = self._saved / self._possible * len(self.space.units)
        table[..., 7] = self.space.mask
        return table

    def _format_features(self, unit: int, rest: Floats, price: Floats) -> NDArray[np.float32]:
        table = np.repeat(self._static[unit][None], len(rest), axis=0)
        damage = self._beliefs.damage[unit][None]
        table[..., 2] = _log_ratio(damage, self._budget[:, None])
        table[..., 3] = _log_ratio(damage, rest[:, None])
        share = damage / self._budget[:, None]
        table[..., 6] = price[:, None] * share * len(self.space.units)
        return np.asarray(np.clip(table, -BOUND, BOUND), np.float32)

    def _goal_features(self) -> NDArray[np.float32]:
        totals = self._total_features(self._prices.at(self._budget) * self._budget / self._possible)
        kept = [TOTAL_FEATURES.index(name) for name in GOAL_FEATURES[:-1]]
        size = np.full((len(totals), 1), np.log10(len(self.space.units)), np.float32)
        return np.concatenate([totals[:, kept], size], axis=1)

    def _total_features(self, price: Floats) -> NDArray[np.float32]:
        totals = np.zeros((len(self.limits), len(TOTAL_FEATURES)))
        totals[:, 0] = np.log1p(np.minimum(self._spent / self._budget, 1e4))
        totals[:, 1] = self._gained / self._possible
        totals[:, 2] = self._to_save[self.position] / self._possible
        totals[:, 3] = self.position / len(self.space.units)
        totals[:, 4] = np.log10(np.clip(price, 1e-4, 1e4))
        totals[:, 5] = np.log10(np.maximum(self.limits, SMALLEST_LIMIT)) / 3
        totals[:, 6] = self._beliefs.root
        totals[:, 7 + OBJECTIVES.index(self.goal.objective)] = 1.0
        if self.goal.max_bytes is not None:
            totals[:, 10] = 1.0
            least = 1 + self._bytes + self._least_bytes[self.position]
            totals[:, 11] = self.goal.max_bytes / self._baseline_bytes - least
        return np.asarray(np.clip(totals, -BOUND, BOUND), np.float32)


def _squash(share: Floats) -> Floats:
    return np.asarray(np.sign(share) * np.log1p(100 * np.abs(share)) / 3)


def _log_ratio(damage: Floats, budget: Floats) -> Floats:
    ratio = np.maximum(damage, 1e-300) / np.maximum(budget, 1e-300)
    return np.asarray(np.clip(np.log10(ratio), -6, 6) / 3)
