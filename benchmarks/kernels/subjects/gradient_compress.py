"""`gradient_compress` and its undoing: every bit is the reference's; their speed is what memory allows."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from autoprec.kernels.ops.gradient_compress import (
    gradient_compress,
    gradient_decompress,
    reference,
    reference_decompress,
)
from benchmarks.kernels.cases import BANDWIDTH, Check, Goal, Timing, Work, bytes_of, compiled, normal
from benchmarks.kernels.comparing import differing_bits, spiked
from benchmarks.kernels.shapes import ELEMENTS

_FLOATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
_PARTS = ("compress", "write", "add")
"""Compress a gradient; write what was compressed; add it to what is there, as the sum over ranks does."""


def checks(tiny: bool) -> Iterator[Check]:
    """Return checks of each type and part: odd sizes, extremes, blocks with NaN and inf."""
    for kind in _FLOATS:
        for part in _PARTS:
            for rows in (12, 60) if tiny else (12, 60, 4096):
                run = functools.partial(_compare, kind, part, rows * 129)
                yield Check(f"{kind} {part}", f"{rows * 129}", run)


def _compare(kind: str, part: str, count: int, device: torch.device) -> str:
    from autoprec.kernels.jit.gradient_compress import launch, launch_decompress

    # The second block has inf, the third NaN, the first extremes that are both far from overflowing.
    gradient = spiked((count // 129, 129)).view(-1).clamp(-1e30, 1e30)
    gradient[700], gradient[1100] = float("inf"), float("nan")
    gradient = gradient.to(_FLOATS[kind])
    residual = normal(torch.device("cpu"), count, dtype=torch.float32, seed=1)
    # The reference on the CPU: torch on a GPU divides by a number through its reciprocal, a bit less exact.
    # Nothing is tolerated: a receiver that rounds otherwise than the sender's residual says loses something.
    if part == "compress":
        mine, theirs = residual.to(device, copy=True), residual.clone()
        found = (*launch(gradient.to(device), mine), mine)
        expected = (*reference(gradient, theirs), theirs)
        for name, one, other in zip(("values", "scale", "residual"), found, expected, strict=True):
            if said := differing_bits(one, other):
                return f"{name}: {said}"
        return ""
    values, scale = reference(gradient, residual)
    wanted = normal(torch.device("cpu"), count, dtype=_FLOATS[kind], seed=2)
    out = wanted.to(device, copy=True)
    launch_decompress(values.to(device), scale.to(device), out, part == "add")
    reference_decompress(values, scale, wanted, part == "add")
    return differing_bits(out, wanted)


def timings() -> Iterator[Timing]:
    """Return a large flat gradient, compressed and decompressed."""
    for part in _PARTS:
        for kind in _FLOATS:
            yield Timing(
                f"{kind} {part}",
                {"elements": ELEMENTS},
                "gradients",
                "",
                functools.partial(_prepare, kind, part, ELEMENTS),
                Goal(0.85, BANDWIDTH),
            )


def _prepare(kind: str, part: str, count: int, device: torch.device) -> Work:
    gradient = normal(device, count, dtype=_FLOATS[kind])
    # Runs repeat on what they leave, which stays as small as a step of the rounding.
    residual = torch.zeros(count, device=device)
    if part == "compress":

        def eager() -> object:
            return reference(gradient, residual)

        sent = gradient_compress(gradient, residual)
        moved = bytes_of(gradient, *sent) + 2 * bytes_of(residual)
        rivals = {"torch": eager, "torch.compile": compiled(eager)}
        return Work(lambda: gradient_compress(gradient, residual), rivals, 0.0, moved)
    return _prepare_undoing(gradient, residual, part == "add")


def _prepare_undoing(gradient: Tensor, residual: Tensor, add: bool) -> Work:
    sent = gradient_compress(gradient, residual)
    out = torch.zeros_like(gradient)

    def eager() -> object:
        return reference_decompress(*sent, out, add)

    return Work(
        lambda: gradient_decompress(sent, into=out) if add else gradient_decompress(sent, gradient.dtype),
        {"torch": eager, "torch.compile": compiled(eager)},
        0.0,
        bytes_of(*sent) + (2 if add else 1) * bytes_of(out),
    )
