"""Which formats the searchers may choose: those asked for, native here, and not beaten in every respect."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoprec.envs.space import FORMAT_NAMES, Goal, Profile, SearchSpace
from autoprec.envs.units import Discovery
from autoprec.errors import SettingError

DOMINATED_MARGIN = 1.15
"""A format is dropped for a unit where another is this many times faster, as exact, and as small."""


def search_space(
    discovery: Discovery,
    profile: Profile,
    goal: Goal,
    formats: Sequence[str] | None,
    *,
    drop_dominated: bool = True,
) -> SearchSpace:
    """Return the space of plans.

    A unit's own format is always allowed. Emulated formats never are: their speed cannot be measured.

    Args:
        discovery: The units.
        profile: Their profile.
        goal: Bytes decide only where the goal speaks of memory.
        formats: Formats asked for; `None` for all.
        drop_dominated: Leave out formats that another beats in every respect; False keeps them, for
            landscapes that are to hold every plan.

    Raises:
        SettingError: A format that was asked for is native in no unit; says why.
    """
    asked = range(len(FORMAT_NAMES)) if formats is None else [FORMAT_NAMES.index(name) for name in formats]
    native = ~np.isnan(profile.time)
    if formats is not None:
        for k in asked:
            if not native[:, k].any():
                reason = next((row[k] for row in profile.reasons if row[k]), "refused")
                raise unusable(FORMAT_NAMES[k], reason)
    baseline = tuple(FORMAT_NAMES.index(unit.baseline) for unit in discovery.units)
    mask = np.zeros_like(native)
    mask[:, list(asked)] = native[:, list(asked)]
    mask[np.arange(len(baseline)), list(baseline)] = True
    if not drop_dominated:
        return SearchSpace(tuple(unit.name for unit in discovery.units), mask, baseline)
    weigh_bytes = goal.objective == "memory" or goal.max_bytes is not None
    for u, own in enumerate(baseline):
        for k in map(int, np.flatnonzero(mask[u])):
            others = [int(j) for j in np.flatnonzero(mask[u]) if j != k]
            if k != own and any(_dominates(profile, u, j, k, weigh_bytes) for j in others):
                mask[u, k] = False
    return SearchSpace(tuple(unit.name for unit in discovery.units), mask, baseline)


def unusable(name: str, reason: str) -> SettingError:
    """Return the error for a format that was asked for and is native in no unit."""
    return SettingError(
        f"formats asks for {name}, which no unit can run here ({reason}); `autoprec doctor` shows what this "
        "machine can do"
    )


def _dominates(profile: Profile, unit: int, better: int, worse: int, weigh_bytes: bool) -> bool:
    time, error, held = profile.time[unit], profile.error[unit], profile.bytes[unit]
    return bool(
        time[better] * DOMINATED_MARGIN < time[worse]
        and error[better] <= error[worse]
        and (not weigh_bytes or held[better] <= held[worse])
    )
