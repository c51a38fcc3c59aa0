"""What a tuning job is asked for: the options of `autoprec tune`, checked and in numbers."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from autoprec.agents.searcher import SEARCHERS
from autoprec.envs.space import OBJECTIVES, Goal, Objective
from autoprec.errors import SettingError
from autoprec.kernels.formats import parse_formats
from autoprec.plan import EAGER
from autoprec.runtimes.available import RUNTIMES

ALL_RUNTIMES = "all"
DEFAULT_RELATIVE_DROP = 0.01
"""Without a limit, the plan called best is the fastest whose quality drop is within this share."""
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


@dataclass(frozen=True, slots=True)
class Budget:
    """How much measuring a job may spend: runs, or seconds of wall time, or (by default) both."""

    runs: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, given: str | int) -> Budget:
        """Read `200` (measured runs) or `90s`, `20m`, `1h` (wall time).

        Raises:
            SettingError: Neither, or not above 0.
        """
        text = str(given).strip().lower()
        if match := re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smh])", text):
            seconds = float(match[1]) * _SECONDS[match[2]]
            if seconds > 0:
                return cls(seconds=seconds)
        elif re.fullmatch(r"\d{1,9}", text) and int(text) > 0:
            return cls(runs=int(text))
        raise SettingError(
            f"budget is {given!r}; give measured runs (200) or wall time (90s, 20m, 1h), above 0"
        )

    @classmethod
    def default(cls, units: int) -> Budget:
        """Return the default for a model: 3 runs a unit within 40 to 150, and at most 10 minutes."""
        return cls(runs=min(150, max(40, 3 * units)), seconds=600.0)


class TuneSettings(BaseModel):
    """The options of one job, as given. `check` turns mistakes into `SettingError`s.

    Attributes:
        workload: Reference of the workload.
        objective: `latency`, `throughput` or `memory`.
        max_quality_drop: `0.005`, `1%` of the baseline's quality, or `None` for the whole front.
        max_memory: Limit on bytes held by weights: `80MB`, `0.5GiB`, or `40%` of the baseline's.
        budget: `200`, `20m`, or `None` for the default.
        runtime: A name of `autoprec.runtimes.available.RUNTIMES`, or `all`.
        searcher: A name of `autoprec.agents.searcher.SEARCHERS`.
        formats: Formats to choose from, or `None` for all that are native.
        seed: Seed of the searchers.
        groups: Regular expressions whose matches form one unit.
        exclude: Regular expressions of modules to leave alone.
        fresh: Measure and profile everything, whatever the store holds already.
    """

    workload: str
    objective: Objective = "latency"
    max_quality_drop: str | None = None
    max_memory: str | None = None
    budget: str | None = None
    runtime: str = EAGER
    searcher: str = "portfolio"
    formats: tuple[str, ...] | None = None
    seed: int = 0
    groups: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    fresh: bool = False

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def check(cls, **given: Any) -> TuneSettings:
        """Return the settings.

        Raises:
            SettingError: An option cannot be used; names it, the value and what to do.
        """
        objective = given.get("objective", "latency")
        if objective not in OBJECTIVES:
            raise SettingError(f"unknown objective {objective!r}; use one of {', '.join(OBJECTIVES)}")
        runtime = given.get("runtime", EAGER)
        if runtime not in (*RUNTIMES, ALL_RUNTIMES):
            raise SettingError(
                f"unknown runtime {runtime!r}; use one of {', '.join(RUNTIMES)}, or {ALL_RUNTIMES}"
            )
        searcher = given.get("searcher", "portfolio")
        if searcher not in SEARCHERS:
            raise SettingError(f"unknown searcher {searcher!r}; use one of {', '.join(SEARCHERS)}")
        seed = given.get("seed", 0)
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
            raise SettingError(f"seed is {seed!r}; give a whole number from 0 to 2147483647")
        for option in ("max_quality_drop", "max_memory", "budget"):
            if given.get(option) is not None:
                given[option] = str(given[option]).strip()
        for option in ("groups", "exclude"):
            patterns = given.get(option, ())
            given[option] = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        given["formats"] = parse_formats(given.get("formats"))
        settings = cls(**given)
        settings.quality_limit(1.0)
        settings.byte_limit(1)
        if settings.budget is not None:
            Budget.parse(settings.budget)
        return settings

    @property
    def runtimes(self) -> tuple[str, ...]:
        """The runtimes to measure in."""
        return RUNTIMES if self.runtime == ALL_RUNTIMES else (self.runtime,)

    def quality_limit(self, baseline_quality: float) -> float | None:
        """Return the absolute limit on quality drop, or `None` for the whole front.

        Raises:
            SettingError: It is not a number or a percentage, or is negative.
        """
        if self.max_quality_drop is None:
            return None
        number, percent = _number(self.max_quality_drop, "%")
        if number is None or number < 0:
            raise SettingError(
                f"max_quality_drop is {self.max_quality_drop!r}; give a number (0.005) or a percentage "
                "of the baseline's quality (1%), 0 or more"
            )
        return number / 100 * abs(baseline_quality) if percent else number

    def byte_limit(self, baseline_bytes: int) -> int | None:
        """Return the limit on bytes held by weights, or `None`.

        Raises:
            SettingError: It is not a size or a percentage, or not above 0.
        """
        if self.max_memory is None:
            return None
        number, percent = _number(self.max_memory, "%")
        if number is None and (
            match := re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmg]i?b|b)", self.max_memory.lower())
        ):
            number, percent = float(match[1]) * _BYTES[match[2]], False
        if number is None or number <= 0:
            raise SettingError(
                f"max_memory is {self.max_memory!r}; give a size (80MB, 0.5GiB) or a percentage of the "
                "baseline's (40%), above 0"
            )
        return int(number / 100 * baseline_bytes if percent else number)

    def goal(self, baseline_quality: float, baseline_bytes: int) -> tuple[Goal, float | None]:
        """Return the goal, and the limit on quality drop that was given, absolute.

        Args:
            baseline_quality: Magnitude of the baseline's quality, which shares are of.
            baseline_bytes: Bytes that it holds.
        """
        limit = self.quality_limit(baseline_quality)
        allowed = DEFAULT_RELATIVE_DROP * baseline_quality if limit is None else limit
        return Goal(self.objective, allowed, limit is None, self.byte_limit(baseline_bytes)), limit

    @property
    def key(self) -> str:
        """Digest of the settings that decide what is searched; the budget may grow on resume."""
        data = self.model_dump(mode="json", exclude={"budget", "fresh"})
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]


def _number(text: str, suffix: str) -> tuple[float | None, bool]:
    """Return the number that `text` is, and whether it had the suffix; no number for anything else."""
    body = text.removesuffix(suffix)
    try:
        number = float(body)
    except ValueError:
        return None, False
    return (number if math.isfinite(number) else None), body != text
