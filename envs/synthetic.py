"""Synthetic landscapes: made-up workloads with a known law, for tests and for training policies.

They are analytic: any plan can be evaluated, nothing is recorded. The law has what makes real searches
hard: sensitivities spread over three decades, local errors that only hint at them, neighbours that hurt
each other, heavy damage that saturates, and noise.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoprec.envs.landscape import Landscape, LandscapeError
from autoprec.envs.space import (
    FEATURES,
    FORMAT_NAMES,
    Assignment,
    Goal,
    Profile,
    SearchSpace,
    Trial,
    best_trial,
)
from autoprec.errors import SettingError
from autoprec.kernels.formats import FORMATS

BRUTE_FORCE_LIMIT = 500_000
"""Largest space whose optimum is found by trying every plan."""

# Typical local relative output error and time relative to fp32, per format.
_CHARACTER: dict[str, tuple[float, float]] = {
    "fp32": (0.0, 1.0),
    "bf16": (4e-3, 0.75),
    "fp16": (5e-4, 0.8),
    "fp16_weight": (3e-4, 0.8),
    "int8_dynamic": (2.5e-2, 0.45),
    "int8_dynamic_row": (1.2e-2, 0.5),
    "int8_static": (3e-2, 0.4),
    "int8_weight_only": (7e-3, 0.6),
    "int4_weight_only": (8e-2, 0.5),
    "fp8_e4m3": (3e-2, 0.5),
    "fp8_e5m2": (6e-2, 0.5),
    "fp8_block": (2.5e-2, 0.55),
}
_UNKNOWN = (2e-2, 0.6)
DEFAULT_FORMATS = ("fp32", "bf16", "int8_dynamic", "int8_dynamic_row", "int8_weight_only", "int4_weight_only")


@dataclass(frozen=True)
class SyntheticLandscape:
    """A made-up workload whose law is known; see `synthetic_landscape`.

    Attributes:
        name: Says how it was made.
        space: The search space.
        profile: What a profile of it would say: close to the truth in time, a hint only in damage.
        max_quality_drop: A limit under which the search is neither trivial nor hopeless.
        true_rest: Relative time outside all units.
        true_time: `[U, K]` relative time of each unit.
        true_damage: `[U, K]` damage of each unit alone, 0 for the baseline.
        coupling: `[U - 1]` strength with which neighbours amplify each other's damage.
        root: The power that damage is raised to; 0.5 where quality is a relative error.
        ceiling: The drop that heavy damage saturates at.
        time_noise: Relative standard deviation of a measured time.
        drop_noise: Standard deviation of a measured drop.
        failing: Pairs (unit, format) with which every plan fails.
        seed: Fixes the noise: one plan always measures the same.
    """

    name: str
    space: SearchSpace
    profile: Profile
    max_quality_drop: float
    true_rest: float
    true_time: NDArray[np.float64]
    true_damage: NDArray[np.float64]
    coupling: NDArray[np.float64]
    root: float
    ceiling: float
    time_noise: float
    drop_noise: float
    failing: frozenset[tuple[int, int]]
    seed: int

    def figures(self, assignments: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return noise-free relative times and drops of plans `[N, U]`; NaN where the plan fails."""
        rows = np.arange(len(self.space.units))
        damage = self.true_damage[rows, assignments]
        coupled = self.coupling * np.sqrt(damage[:, 1:] * damage[:, :-1])
        total = np.power(damage.sum(axis=1) + coupled.sum(axis=1), self.root)
        drop = self.ceiling * -np.expm1(-total / self.ceiling)
        time = self.true_rest + self.true_time[rows, assignments].sum(axis=1)
        fails = np.zeros(len(assignments), np.bool_)
        for unit, index in self.failing:
            fails |= assignments[:, unit] == index
        return np.where(fails, np.nan, time), np.where(fails, np.nan, drop)

    @property
    def identity(self) -> str:
        """The name, which says how it was made."""
        return self.name

    def evaluate(self, assignment: Assignment, searcher: str) -> Trial:
        """Return the measured run of a plan.

        Raises:
            LandscapeError: It is no plan of the space.
        """
        if not self.space.feasible(assignment):
            raise LandscapeError(
                f"{assignment} is no plan of the landscape {self.name!r}: check it by its mask"
            )
        time, drop = self.figures(np.array([assignment], np.intp))
        if np.isnan(time[0]):
            return Trial(tuple(assignment), False, np.nan, np.nan, np.nan, searcher)
        noise = np.random.default_rng([self.seed, *(int(index) for index in assignment)]).normal(size=2)
        return Trial(
            assignment=tuple(assignment),
            ok=True,
            time=float(time[0] * np.exp(self.time_noise * noise[0])),
            bytes=float(self.profile.plan_bytes(self.space, assignment)),
            drop=float(drop[0] + self.drop_noise * noise[1]),
            searcher=searcher,
        )

    def record(self) -> Landscape:
        """Return a complete landscape with a run of every plan.

        Raises:
            SettingError: The space has more plans than `BRUTE_FORCE_LIMIT`.
        """
        trials = tuple(self.evaluate(plan, "exhaustive") for plan in all_plans(self.space))
        return Landscape(self.name, self.space, self.profile, trials, True, self.max_quality_drop)

    def optimum(self, goal: Goal) -> Trial | None:
        """Return the cheapest plan that meets the goal by its noise-free figures, by trying every plan.

        Raises:
            SettingError: The space has more plans than `BRUTE_FORCE_LIMIT`.
        """
        plans = np.array(list(all_plans(self.space)), np.intp)
        time, drop = self.figures(plans)
        runs = ~np.isnan(time)
        plans, time, drop = plans[runs], time[runs], drop[runs]
        held = [float(self.profile.plan_bytes(self.space, plan)) for plan in plans.tolist()]
        trials = [
            Trial(tuple(plan), True, float(t), b, float(d), "exhaustive")
            for plan, t, b, d in zip(plans.tolist(), time, held, drop, strict=True)
        ]
        return best_trial(trials, goal)


def all_plans(space: SearchSpace) -> itertools.product[Assignment]:
    """Return every plan of a small space, in lexical order.

    Raises:
        SettingError: The space has more plans than `BRUTE_FORCE_LIMIT`.
    """
    if space.size > BRUTE_FORCE_LIMIT:
        raise SettingError(
            f"the space has {space.size:.3g} plans, more than the {BRUTE_FORCE_LIMIT} that can all be tried"
        )
    return itertools.product(*(space.choices(unit) for unit in range(len(space.units))))


def synthetic_landscape(
    seed: int,
    units: int = 12,
    *,
    formats: Sequence[str] = DEFAULT_FORMATS,
    time_noise: float = 0.0,
    drop_noise: float = 0.0,
    coupling: float = 0.3,
    profile_noise: float = 0.05,
    root: float = 1.0,
    failing: int = 0,
    kinds: int = 0,
) -> SyntheticLandscape:
    """Make a landscape from a seed.

    Unit `u` has a share of the time (log-normal) and a sensitivity `10^uniform(-1.5, 1.5)`; format `k` in
    it has a local error around the format's typical one, takes a time around the format's typical one
    (sometimes more than fp32), and does `sensitivity × error² × log-normal(0.4)` damage. Damages add up,
    neighbours add `coupling × sqrt(product)`, and the sum, to the power `root`, saturates at 1. Damage is
    scaled so that the median uniform plan drops quality by 5 times `max_quality_drop`.

    Args:
        seed: Fixes everything, the measurement noise too.
        units: Number of units, at least 1.
        formats: Allowed formats; `fp32`, the baseline, must be among them.
        time_noise: Relative standard deviation of measured times.
        drop_noise: Standard deviation of measured drops, in units of `max_quality_drop`.
        coupling: Mean strength of neighbour interactions.
        profile_noise: Relative standard deviation of the profile's times.
        root: 1 for a quality that is quadratic in errors; 0.5 for one that is a relative error.
        failing: How many (unit, format) pairs make every plan fail.
        kinds: Units take turns in so many kinds of layer, which share sizes and a sensitivity: two decades of
            its spread are then between kinds and one is within; 0 for units that have nothing in common.

    Raises:
        SettingError: `units` is below 1, a format is unknown, or `fp32` is missing.
    """
    if units < 1:
        raise SettingError(f"units is {units}; a landscape needs at least 1")
    for name in ("fp32", *formats):
        if name not in FORMATS or (name not in formats and name == "fp32"):
            raise SettingError(f"formats is {tuple(formats)}; use known formats, with fp32 among them")
    rng = np.random.default_rng([seed, units])
    columns = [FORMAT_NAMES.index(name) for name in formats]
    shape = (units, len(FORMAT_NAMES))
    typical = np.array([_CHARACTER.get(name, _UNKNOWN) for name in FORMAT_NAMES])
    base = FORMAT_NAMES.index("fp32")

    rest = rng.uniform(0.1, 0.3)
    share = rng.lognormal(0.0, 0.8, units)
    if kinds:
        share = share[np.arange(units) % kinds] * rng.lognormal(0.0, 0.1, units)
    share *= (1 - rest) / share.sum()
    # The fastest fp32 kernel is up to a third faster than what the model came with: the lossless gain.
    factor = typical[:, 1] * rng.lognormal(0.0, 0.25, shape)
    factor[:, base] = rng.uniform(0.7, 1.0, units)
    time = share[:, None] * factor

    error = typical[:, 0] * rng.lognormal(0.0, 0.4, shape)
    exponent = rng.uniform(-1.5, 1.5, units)
    if kinds:
        kind = np.arange(units) % kinds
        exponent = rng.uniform(-1.0, 1.0, kinds)[kind] + exponent / 3
    sensitivity = 10**exponent
    damage = sensitivity[:, None] * error**2 * rng.lognormal(0.0, 0.4, shape)
    limit = 0.01
    uniform = np.median([damage[:, column].sum() for column in columns if column != base] or [1.0])
    # Invert the saturation, so that the median uniform plan really drops by 5 limits.
    damage *= (-np.log1p(-5 * limit)) ** (1 / root) / uniform

    mask = np.zeros(shape, np.bool_)
    mask[:, columns] = True
    space = SearchSpace(tuple(f"unit{index}" for index in range(units)), mask, (base,) * units)
    pairs = [(unit, column) for unit in range(units) for column in columns if column != base]
    chosen = rng.choice(len(pairs), size=min(failing, len(pairs)), replace=False) if pairs else ()
    return SyntheticLandscape(
        name=f"synthetic-{seed}-{units}x{len(columns)}",
        space=space,
        profile=_profile(seed, rng, space, share, time * rng.lognormal(0.0, profile_noise, shape), error),
        max_quality_drop=limit,
        true_rest=float(rest),
        true_time=time,
        true_damage=damage,
        coupling=rng.exponential(coupling, max(units - 1, 0)) if coupling else np.zeros(max(units - 1, 0)),
        root=root,
        ceiling=1.0,
        time_noise=time_noise,
        drop_noise=drop_noise * limit,
        failing=frozenset(pairs[index] for index in chosen),
        seed=seed,
    )


def _profile(
    seed: int,
    rng: np.random.Generator,
    space: SearchSpace,
    share: NDArray[np.float64],
    time: NDArray[np.float64],
    error: NDArray[np.float64],
) -> Profile:
    units = len(space.units)
    bits = np.array([FORMATS[name].bits for name in FORMAT_NAMES])
    parameters = (1e6 * share * units * rng.lognormal(0.0, 0.3, units)).astype(np.int64) + 64
    held = np.where(space.mask, parameters[:, None] * bits // 8, 0)
    features = _features(np.random.default_rng([seed, units, 1]), parameters, share)
    return Profile(
        time=np.where(space.mask, time, np.nan),
        bytes=held,
        error=np.where(space.mask, error, np.nan),
        features=features,
        implementations=tuple(
            tuple(("synthetic",) if allowed else () for allowed in row) for row in space.mask
        ),
        baseline_seconds=0.01,
        baseline_bytes=int(held[np.arange(units), list(space.baseline)].sum()),
        reasons=tuple(tuple("" if allowed else "not offered" for allowed in row) for row in space.mask),
    )


def _features(
    rng: np.random.Generator, parameters: NDArray[np.int64], share: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Return unit features on the scales that `autoprec.envs.features` gives those of real models.

    Kinds, shapes and statistics differ between landscapes and units, and say nothing of the law.
    """
    units = len(parameters)
    wide = rng.uniform(0.3, 0.7, units)
    kinds = rng.choice(3, units, p=rng.choice([[1.0, 0.0, 0.0], [0.8, 0.0, 0.2], [0.2, 0.8, 0.0]]))

    def statistic(low: float, high: float) -> NDArray[np.float64]:
        return rng.uniform(low, high) + rng.uniform(0.0, 0.2, units)

    values = {
        "is_linear": kinds == 0,
        "is_conv2d": kinds == 1,
        "is_embedding": kinds == 2,
        "depth": np.arange(units) / max(1, units - 1),
        "siblings": rng.choice([0.25, 0.25, 0.5, 0.75], units),
        "log_inputs": wide * np.log10(parameters) / 5,
        "log_outputs": (1 - wide) * np.log10(parameters) / 5,
        "log_rows": np.full(units, rng.uniform(0.05, 0.9)),
        "log_parameters": np.log10(parameters + 1) / 9,
        "log_calls": np.full(units, np.log10(rng.integers(2, 5))),
        "weight_kurtosis": statistic(0.25, 0.8),
        "weight_max_over_std": statistic(0.25, 0.6),
        "channel_spread": statistic(0.0, 0.3),
        "input_max_over_std": statistic(0.2, 0.8),
        "time_share": share,
        "byte_share": parameters / parameters.sum(),
    }
    return np.stack([np.asarray(values[name], np.float32) for name in FEATURES], axis=1)
