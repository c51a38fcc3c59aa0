"""What a peer chose, as data: layers to recipes, recipes to our nearest formats. Needs pydantic only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

NEAREST: dict[str, tuple[str, ...]] = {
    "fp32": ("fp32",),
    "bf16": ("bf16", "fp32"),
    "fp16": ("fp16", "bf16", "fp32"),
    "int8 static": ("int8_static", "int8_static_7bit", "int8_weight_only", "fp32"),
    "int8 static smooth": (
        "int8_static_smooth",
        "int8_static",
        "int8_static_7bit",
        "int8_weight_only",
        "fp32",
    ),
    "int8 dynamic": ("int8_dynamic", "int8_dynamic_7bit", "int8_weight_only", "fp32"),
    "int8 weights": ("int8_weight_only", "fp32"),
    "int4 weights": ("int4_weight_only", "fp32"),
    "fp8": ("fp8_e4m3", "fp32"),
}
"""For each recipe our formats, the nearest first; the first that runs natively is taken."""

EXACTNESS = (
    "fp32",
    "fp16",
    "bf16",
    "int8 weights",
    "int8 static smooth",
    "int8 dynamic",
    "int8 static",
    "fp8",
    "int4 weights",
)
"""Recipes from the most exact to the least: the modules of a unit take the most exact of theirs."""


class Ratio(BaseModel):
    """A paired ratio of times with its 95% interval: above 1 is faster than what it is compared with."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return it as tables show it."""
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class PeerResult(BaseModel):
    """What one peer came to, in its own virtual environment.

    Attributes:
        peer: Its name here.
        version: Of its package.
        status: `ok`, or `failed` where it chose nothing.
        reason: Why it failed, in one line.
        call: What of it was called, in words.
        evaluations: Judgements of a whole model by the workload's own quality during the search, the model as
            it came included.
        seconds: Of the search.
        choices: Module path to a key of `NEAREST`; a module that is not named is as it came.
        beyond: Operations that it quantised and that no unit of ours covers, and how many.
        search_drop: Drop of its model on the data that it was judged on.
        drop: The same on the held-out data.
        speed: Its own executable against PyTorch in fp32.
        milliseconds: Of one run of its own executable.
        executable: What that is.
        no_speed: Why its executable was not timed.
        notes: What a reader should know.
        quiet: Whether nothing else ran on the machine, as the user said.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    peer: str
    version: str = ""
    status: Literal["ok", "failed"]
    reason: str = ""
    call: str = ""
    evaluations: int = 0
    seconds: float = 0.0
    choices: dict[str, str] = {}
    beyond: dict[str, int] = {}
    search_drop: float | None = None
    drop: float | None = None
    speed: Ratio | None = None
    milliseconds: float | None = None
    executable: str = ""
    no_speed: str = ""
    notes: tuple[str, ...] = ()
    quiet: bool = False


def failed(peer: str, reason: str, *, quiet: bool) -> PeerResult:
    """Return the result of a peer that could not run, with the reason on one line."""
    line = " ".join(reason.split())[:300] or "it said nothing"
    return PeerResult(peer=peer, status="failed", reason=line, quiet=quiet)


def last_error(stderr: str) -> str:
    """Return what a failed process said: the last line that names an error, or else the last."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line.split(":")[0] and not line.startswith(" ")]
    return (named or lines or [""])[-1].strip()


def map_choices(
    choices: Mapping[str, str],
    units: Mapping[str, Sequence[str]],
    native: Callable[[str, str], bool],
) -> tuple[dict[str, str], list[str]]:
    """Return our format for each unit, and what was lost on the way, in sentences.

    Args:
        choices: Module path to recipe.
        units: Unit name to the paths of its modules.
        native: Says of a unit's name and a format whether it runs natively there.

    Raises:
        ValueError: A recipe is unknown.
    """
    for path, recipe in choices.items():
        if recipe not in NEAREST:
            raise ValueError(f"{path} has the recipe {recipe!r}; known: {', '.join(NEAREST)}")
    formats, notes = {}, []
    for unit, paths in units.items():
        recipes = {path: choices.get(path, "fp32") for path in paths}
        recipe = min(recipes.values(), key=EXACTNESS.index)
        if len(set(recipes.values())) > 1:
            notes.append(
                f"{unit} is one unit here, and has {recipe} of {', '.join(sorted(set(recipes.values())))}"
            )
        formats[unit] = next((name for name in NEAREST[recipe] if native(unit, name)), "fp32")
        if formats[unit] != NEAREST[recipe][0]:
            notes.append(f"{unit}: {recipe} runs as {formats[unit]}")
    covered = {path for paths in units.values() for path in paths}
    if missing := sorted(path for path in choices if path not in covered and choices[path] != "fp32"):
        notes.append(f"no unit here: {', '.join(missing[:5])}{' and more' if len(missing) > 5 else ''}")
    return formats, notes
