"""Runs the checks, and says which variants may be timed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from autoprec.errors import one_line
from autoprec.kernels.families import Family, detect, native
from autoprec.kernels.registry import Level
from benchmarks.kernels.cases import Check, Timing


@dataclass(frozen=True)
class Verdict:
    """What became of a check.

    Attributes:
        operation: The operation.
        variant: The specialisation.
        name: What was compared.
        state: `right`, `wrong`, or `skipped` where the device cannot compute it.
        reason: What is wrong, or why it was skipped.
    """

    operation: str
    variant: str
    name: str
    state: str
    reason: str = ""


def subject(operation: str) -> Any | None:
    """Return the file that describes an operation, or `None` where there is none."""
    name = f"benchmarks.kernels.subjects.{operation}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None


def family_of(device: torch.device) -> Family | None:
    """Return the device's family; `None` for the interpreter, which computes every type."""
    return detect(device) if device.type == "cuda" else None


def lacking(needs: Sequence[str], family: Family | None) -> str:
    """Say which number type the family does not multiply; empty where it does, or is not known."""
    if family is None:
        return ""
    for operand in needs:
        support = native(family, operand)
        if support.level is not Level.NATIVE:
            return support.reason
    return ""


def run_checks(
    operation: str, checks: Iterable[Check], device: torch.device, say: Callable[[str], None]
) -> list[Verdict]:
    """Run an operation's checks, all of them; what raises is wrong, with its error for a reason."""
    family = family_of(device)
    verdicts = []
    for check in checks:
        if reason := lacking(check.needs, family):
            state = "skipped"
        else:
            try:
                reason = check.run(device)
            except Exception as error:
                reason = one_line(error)
            state = "wrong" if reason else "right"
        verdicts.append(Verdict(operation, check.variant, check.name, state, reason))
        if state == "wrong":
            say(f"WRONG  {operation} {check.variant}, {check.name}: {reason}")
    counts = {state: sum(item.state == state for item in verdicts) for state in ("right", "wrong", "skipped")}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    say(f"checked {operation}: {told or 'nothing'}")
    return verdicts


def missing(operation: str) -> Verdict:
    """Return the verdict on an operation that nothing describes: it is not proven, so it is wrong."""
    return Verdict(operation, "", "", "wrong", f"benchmarks/kernels/subjects/{operation}.py is missing")


def may_be_timed(operation: str, timing: Timing, wrong: Set[tuple[str, str]], family: Family | None) -> bool:
    """Say whether a variant is right here and native: a speed of anything else would mean nothing."""
    return (operation, timing.variant) not in wrong and not lacking(timing.needs, family)


def red(verdicts: Iterable[Verdict]) -> set[tuple[str, str]]:
    """Return operation and variant of whatever has a wrong check; these are never timed."""
    return {(item.operation, item.variant) for item in verdicts if item.state == "wrong"}
