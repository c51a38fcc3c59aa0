"""Which family the running machine is one of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from autoprec.kernels.device import capability, cpu_flags
from autoprec.kernels.families.description import Family
from autoprec.kernels.families.reading import load_families


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """What a device says of itself, as far as families are recognised by it.

    Attributes:
        device: `cuda`, `hip`, `cpu`, `xpu`, `npu`, or another of torch's device types.
        arch: Compute capability (`9.0`) or gcn architecture (`gfx942`); empty for the others.
        flags: Processor flags that torch makes use of; empty for the others.
    """

    device: str
    arch: str = ""
    flags: frozenset[str] = frozenset()


def recognise(machine: Machine, families: Mapping[str, Family]) -> Family | None:
    """Return the family that a machine is one of, with the claims that its flags allow, or `None`."""
    found = [family for family in families.values() if _is_one(machine, family)]
    best = max(found, key=lambda family: family.match.priority, default=None)
    return best.having(machine.flags) if best else None


def _is_one(machine: Machine, family: Family) -> bool:
    match = family.match
    return (
        match.device == machine.device
        and (not match.archs or machine.arch in match.archs)
        and machine.flags.issuperset(match.flags)
    )


def examine(device: torch.device) -> Machine:
    """Return what a device of this machine says of itself."""
    if device.type == "cuda":
        if torch.version.hip:
            return Machine("hip", capability(device))
        major, minor = torch.cuda.get_device_capability(device)
        return Machine("cuda", f"{major}.{minor}")
    if device.type == "cpu":
        return Machine("cpu", flags=usable_flags(cpu_flags(), torch.backends.cpu.get_cpu_capability()))
    return Machine(device.type)


def usable_flags(flags: frozenset[str], used: str) -> frozenset[str]:
    """Return the processor flags without those that torch was told not to use (`ATEN_CPU_CAPABILITY`).

    Args:
        flags: The processor's.
        used: Vector instructions that torch uses, as `torch.backends.cpu.get_cpu_capability` names them.
    """
    unused: tuple[str, ...] = ()
    if used == "AVX2":
        unused = ("avx512", "amx")
    elif used in ("DEFAULT", "NO AVX"):
        unused = ("avx", "amx", "fma")
    return frozenset(flag for flag in flags if not flag.startswith(unused)) if unused else flags


def detect(device: torch.device) -> Family | None:
    """Return the family of a device of this machine, or `None` where none is described that fits.

    The claims are those of this very device: a processor without VNNI has no int8.
    """
    return recognise(examine(device), load_families())
