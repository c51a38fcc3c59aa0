"""`low_bit_adam`: to the nearest, every bit is the reference's; at random, no bias; its speed is memory's."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from autoprec.kernels.ops.low_bit_adam import Moment, low_bit_adam, reference
from benchmarks.kernels.cases import BANDWIDTH, Call, Check, Goal, Timing, Work, bytes_of, compiled, normal
from benchmarks.kernels.comparing import differing_bits, spiked
from benchmarks.kernels.shapes import ELEMENTS

_FLOATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
_BITS = ((8, 8), (16, 8), (16, 16), (8, 16))
_TIMED = (("bf16", (8, 8), True), ("fp32", (8, 8), True), ("fp32", (16, 16), False), ("bf16", (16, 8), True))
_HELD = ("parameter", "first", "its scale", "second", "its scale")
_DEVIATIONS = 5.0
"""How far a mean may be off, in standard deviations; seeds are fixed, so that it is no matter of luck."""


def _variant(kind: str, bits: tuple[int, int], random: bool) -> str:
    return f"{kind} {bits[0]} {bits[1]}{' random' if random else ''}"


def checks(tiny: bool) -> Iterator[Check]:
    """Return checks of each type of parameters and bits of moments, rounded to the nearest and at random."""
    for kind in _FLOATS:
        for bits in _BITS:
            for rows in (5,) if tiny else (5, 1024):
                run = functools.partial(_compare, kind, bits, (rows, 129))
                yield Check(_variant(kind, bits, False), f"{rows * 129}", run)
            yield Check(_variant(kind, bits, True), "mean", functools.partial(_mean, kind, bits))


def _numbers(step: int, seed: int | None) -> tuple[Any, ...]:
    return 1e-2, 0.9, 0.999, 1e-8, 0.1, step, seed


def _compare(kind: str, bits: tuple[int, int], shape: tuple[int, int], device: torch.device) -> str:
    from autoprec.kernels.jit.low_bit_adam import launch

    parameter = normal(torch.device("cpu"), shape[0] * shape[1], dtype=_FLOATS[kind])
    # The reference on the CPU: torch on a GPU divides by a number through its reciprocal, and may fuse a
    # multiplication with an addition. The kernel does neither, so that nothing is tolerated.
    theirs = _state(parameter, bits)
    mine = [item.to(device, copy=True) for item in theirs]
    for step in (1, 2):
        # Beyond 1e18 squares overflow.
        gradient = spiked(shape, seed=step).view(-1).clamp(-1e18, 1e18).to(_FLOATS[kind])
        reference(theirs[0], gradient, *theirs[1:], *_numbers(step, None))
        launch(mine[0], gradient.to(device), *mine[1:], *_numbers(step, None))
        for part, one, other in zip(_HELD, mine, theirs, strict=True):
            if said := differing_bits(one, other):
                return f"{part}, step {step}: {said}"
    return ""


def _state(parameter: Tensor, bits: tuple[int, int]) -> tuple[Tensor, ...]:
    """Return what a step changes: the parameter, the moments and their scales."""
    return (parameter, *Moment.zeros(parameter, bits[0]), *Moment.zeros(parameter, bits[1]))


def _mean(kind: str, bits: tuple[int, int], device: torch.device) -> str:
    """Compare means of what is rounded at random with what is not rounded: the reference draws otherwise."""
    from autoprec.kernels.jit.low_bit_adam import launch

    count, slope = 4096, 0.3
    gradient = torch.full((count,), slope, dtype=torch.float32, device=device)
    gradient[::256] = 1.0  # the largest of a block, which sets the scale
    made = []
    for seed in (5, 5, 6):
        held = _state(torch.ones(count, dtype=_FLOATS[kind], device=device), bits)
        launch(held[0], gradient, *held[1:], *_numbers(1, seed))
        made.append(held)
    first, second = Moment(*made[0][1:3]).dequantize(), Moment(*made[0][3:5]).dequantize()
    # The first step of AdamW: the quotient of the corrected moments is 1.
    for part, found, exact in (
        ("parameter", made[0][0], 1 - 1e-2 * 0.1 - 1e-2),
        ("first", first, (1 - 0.9) * slope),
        ("second", second, (1 - 0.999) ** 0.5 * slope),
    ):
        rest = found.double().view(-1, 256)[:, 1:]
        low, high = float(rest.min()), float(rest.max())
        if not bool(((rest == low) | (rest == high)).all()):
            return f"{part}: one number is rounded to more than two, from {low!r} to {high!r}"
        # Of two numbers a gap apart, the deviation is half the gap at most. Float32 itself is off by 1e-7.
        tolerance = max(_DEVIATIONS * (high - low) / 2 / rest.numel() ** 0.5, 1e-6 * exact)
        off = float(rest.mean()) - exact
        if not abs(off) <= tolerance:
            return f"{part}: its mean {exact + off:.4e} is off by {off:.1e}, more than {tolerance:.1e}"
    if any(differing_bits(*pair) for pair in zip(made[0], made[1], strict=True)):
        return "a seed does not repeat"
    if not any(differing_bits(*pair) for pair in zip(made[0], made[2], strict=True)):
        return "another seed changes nothing"
    return ""


def timings() -> Iterator[Timing]:
    """Return steps of a large flat parameter; those of bfloat16 round at random, as they must to learn."""
    for kind, bits, random in _TIMED:
        yield Timing(
            _variant(kind, bits, random),
            {"elements": ELEMENTS},
            "parameters",
            "",
            functools.partial(_prepare, kind, bits, random, ELEMENTS),
            Goal(0.85, BANDWIDTH),
        )


def _prepare(kind: str, bits: tuple[int, int], random: bool, count: int, device: torch.device) -> Work:
    parameter = normal(device, count, dtype=_FLOATS[kind])
    gradient = normal(device, count, dtype=_FLOATS[kind], seed=1)
    held = _state(parameter, bits)
    theirs = [item.clone() for item in held]

    def eager() -> None:
        # To the nearest, which is less work: a generator of torch cannot be made while a graph is recorded.
        reference(theirs[0], gradient, *theirs[1:], *_numbers(10, None))

    rivals: dict[str, Call] = {
        "torch.optim.AdamW(fused=True)": _fused(parameter, gradient),
        "torch": eager,
        "torch.compile": compiled(eager),
    }
    first, second = Moment(*held[1:3]), Moment(*held[3:5])

    def ours() -> None:
        low_bit_adam(
            parameter, gradient, first, second, step=10, lr=1e-2, weight_decay=0.1, seed=3 if random else None
        )

    return Work(ours, rivals, 0.0, bytes_of(gradient) + 2 * bytes_of(*held))


def _fused(parameter: Tensor, gradient: Tensor) -> Call:
    """Return a step of torch's AdamW on a copy; its moments are of the parameter's type."""
    copy = torch.nn.Parameter(parameter.clone())
    copy.grad = gradient
    # `capturable` keeps the number of the step on the GPU, without which no graph is recorded.
    return torch.optim.AdamW([copy], 1e-2, weight_decay=0.1, fused=True, capturable=copy.is_cuda).step
