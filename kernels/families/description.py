"""What a device family can do, as its file says it, and the fastest that work could be done on a chip."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

OPERANDS = (
    "float32",
    "tf32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float4_e2m1fn",
    "int8",
    "int4",
)
"""Number types of the operands of a matrix product, as torch names them; `tf32` is float32 cut to 19 bits."""


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """How the running machine is recognised as one of a family.

    Attributes:
        device: `cuda` and `hip` (both are `cuda` to torch), `cpu`, `xpu` or `npu`.
        archs: Compute capabilities (`9.0`) or gcn architectures (`gfx942`), one of which it has; empty
            where any device of the kind is meant.
        flags: Processor flags as Linux names them, all of which it has; `cpu` only.
        priority: The highest of the families that match is taken.
    """

    device: str
    archs: tuple[str, ...]
    flags: tuple[str, ...]
    priority: int


@dataclasses.dataclass(frozen=True, slots=True)
class TritonTarget:
    """What Triton compiles for: its `GPUTarget`.

    Attributes:
        backend: `cuda` or `hip`.
        arch: `90` for CUDA, `gfx942` for HIP.
        warp_size: Threads of a warp or wavefront.
    """

    backend: str
    arch: int | str
    warp_size: int

    def __str__(self) -> str:
        return f"{self.backend}:{self.arch}"


@dataclasses.dataclass(frozen=True, slots=True)
class SharedMemory:
    """The most shared memory that one block of threads may use, in bytes, and who says so."""

    bytes: int
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class Native:
    """A number type that a family multiplies in hardware, without converting it to a wider one first.

    Attributes:
        by: The unit or instruction that does it.
        source: Who says so.
        needs: Processor flags that not all of the family have, and that this needs; `cpu` only.
        operations_per_cycle: Multiplications and additions that a core of the best processor of the family
            does in a clock cycle; `None` where it is not known. `cpu` only.
    """

    by: str
    source: str
    needs: tuple[str, ...]
    operations_per_cycle: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Chip:
    """One product of a family. What is not known is absent, never estimated.

    Attributes:
        name: As its maker sells it.
        source: Where all its figures are from.
        driver_name: `device_name` of it, exactly; `None` where that is not known.
        memory_gb: Memory, in 10⁹ bytes as makers count.
        memory_gb_per_s: Peak bandwidth of that memory, in 10⁹ bytes a second.
        rates: Number type → peak in 10¹² multiplications and additions a second, of *dense* matrices (never
            the doubled figure for 2:4 sparsity), floats added up in fp32.
    """

    name: str
    source: str
    driver_name: str | None
    memory_gb: float | None
    memory_gb_per_s: float | None
    rates: Mapping[str, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """Devices that run the same kernels.

    Attributes:
        name: The stem of its file.
        title: What people call it.
        vendor: Who makes it.
        verified: Whether this project's kernels were run and tested on one.
        verified_how: On what, or what was done instead.
        match: How it is recognised.
        triton: What Triton compiles for; `None` where there is no compiler for it.
        shared_memory: Limit of a block; `None` where it is not known.
        preferred_fp8: The 8-bit float for weights and activations; `None` where none is native.
        claims: Number type → how it is multiplied. `native` asks these, and what compiling refused.
        chips: Its products, as far as their figures are known.
    """

    name: str
    title: str
    vendor: str
    verified: bool
    verified_how: str
    match: Match
    triton: TritonTarget | None
    shared_memory: SharedMemory | None
    preferred_fp8: str | None
    claims: Mapping[str, Native]
    chips: tuple[Chip, ...]

    def chip(self, driver_name: str) -> Chip | None:
        """Return the product that the driver calls so, or `None` where it is not described."""
        return next((chip for chip in self.chips if chip.driver_name == driver_name), None)

    def having(self, flags: frozenset[str]) -> Family:
        """Return the family as a processor with these flags is: without the claims whose needs it lacks."""
        kept = {operand: claim for operand, claim in self.claims.items() if flags.issuperset(claim.needs)}
        return dataclasses.replace(self, claims=kept)


def roofline(chip: Chip, operand: str, flops: float, moved: float) -> float | None:
    """Return seconds that a chip needs at the very least, by its peaks.

    The larger of operations by peak rate and bytes by peak bandwidth (Williams, Waterman, Patterson:
    "Roofline", CACM 52(4), 2009). Where one of the peaks is not known, the other is still a bound.

    Args:
        chip: The chip.
        operand: Number type of what is multiplied, one of `OPERANDS`.
        flops: Multiplications and additions, 2·m·n·k of a matrix product.
        moved: Bytes read from memory and written to it.

    Returns:
        Seconds, or `None` where neither peak is known.

    Raises:
        ValueError: The number type is none, or an amount is negative or not finite.
    """
    if operand not in OPERANDS:
        raise ValueError(f"operand is {operand!r}; give one of {', '.join(OPERANDS)}")
    for name, amount in (("flops", flops), ("moved", moved)):
        if not (math.isfinite(amount) and amount >= 0):
            raise ValueError(f"{name} is {amount!r}; give a number that is not negative")
    rate = chip.rates.get(operand)
    bounds = []
    if rate is not None:
        bounds.append(flops / (rate * 1e12))
    if chip.memory_gb_per_s is not None:
        bounds.append(moved / (chip.memory_gb_per_s * 1e9))
    return max(bounds, default=None)
