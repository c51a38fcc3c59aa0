"""What ahead-of-time compilation of the kernels refused, which overrides what a family's file claims."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
import re
from collections.abc import Mapping
from importlib.resources.abc import Traversable

from autoprec.kernels.families.description import OPERANDS, Family
from autoprec.kernels.families.reading import Section
from autoprec.kernels.registry import Level, Support


@dataclasses.dataclass(frozen=True, slots=True)
class Compiled:
    """What became of the kernels' cases when they were compiled for one target.

    A case is a kernel with its settings, for example `scaled_mm.e4m3.row.64x128 of float8_e4m3fn`. It is
    about the number types that stand in its name as words.

    Attributes:
        triton: Release of Triton that compiled.
        refused: Case → what the compiler said.
        compiled: The cases that compiled.
    """

    triton: str
    refused: Mapping[str, str]
    compiled: tuple[str, ...]


def read_compiled(file: Traversable) -> dict[str, Compiled]:
    """Return what is told of each Triton target (`cuda:80`, `hip:gfx942`) in a file.

    Raises:
        ValueError: The file is no JSON, or not as `Compiled`; the message names the place and the value.
    """
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file.name} is no JSON: {error}") from None
    top = Section(file.name, values)
    found = {}
    for target in top.left():
        section = top.section(target)
        told = section.section("refused")
        refused = {case: told.text(case) for case in told.left()}
        compiled = section.texts("compiled")
        if both := sorted(refused.keys() & set(compiled)):
            raise section.wrong("compiled", both, "these cases are refused too; keep one of both")
        found[target] = Compiled(section.text("triton"), refused, compiled)
        section.end()
    return found


@functools.cache
def load_compiled() -> dict[str, Compiled]:
    """Return what the package tells of each Triton target."""
    return read_compiled(importlib.resources.files("autoprec.kernels.families") / "compiled.json")


def native(family: Family, operand: str, compiled: Mapping[str, Compiled] | None = None) -> Support:
    """Say whether a family multiplies a number type natively, and why not.

    A type that the file claims is refused where the compiler refused a case of it and compiled none:
    some other type in the name was to blame otherwise. What compiles is no proof of hardware (Triton
    widens some types without saying so), so nothing becomes native by it.

    Args:
        family: The family.
        operand: One of `OPERANDS`.
        compiled: Triton target → what became of the kernels there; `None` takes the package's own.

    Raises:
        ValueError: The number type is none.
    """
    if operand not in OPERANDS:
        raise ValueError(f"operand is {operand!r}; give one of {', '.join(OPERANDS)}")
    if operand not in family.claims:
        return Support(Level.EMULATED, f"{family.title} has no instruction that multiplies {operand}")
    target = str(family.triton)
    told = (load_compiled() if compiled is None else compiled).get(target)
    if told is None or any(_is_about(case, operand) for case in told.compiled):
        return Support(Level.NATIVE)
    for case, reason in told.refused.items():
        if _is_about(case, operand):
            return Support(
                Level.REFUSED, f"Triton {told.triton} does not compile {case} for {target}: {reason}"
            )
    return Support(Level.NATIVE)


def _is_about(case: str, operand: str) -> bool:
    return operand in re.findall(r"\w+", case)
