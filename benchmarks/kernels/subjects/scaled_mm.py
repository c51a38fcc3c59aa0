"""`scaled_mm` against `torch._scaled_mm`, `torch._int_mm` and the product in bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from autoprec.kernels.ops.quantize import Quantized, quantize
from autoprec.kernels.ops.quantize import reference as quantized
from autoprec.kernels.ops.scaled_mm import reference, scaled_mm
from benchmarks.kernels.cases import Check, Goal, Timing, Work, bytes_of, normal
from benchmarks.kernels.comparing import too_far
from benchmarks.kernels.shapes import products

_E4M3, _E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
BF16 = "bf16 matmul"
ROW_WISE = "torch._scaled_mm row-wise"
_MANY = 1024
"""Rows from which the goals hold."""


@dataclass(frozen=True)
class _Variant:
    """A pair of number types, what shares their scales, and how the sums are kept."""

    name: str
    left: torch.dtype
    right: torch.dtype
    left_scales: str = "row"
    right_scales: str = "row"
    fast: bool = False
    goal: Goal | None = None
    timed: bool = True

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple({str(kind).removeprefix("torch."): None for kind in (self.left, self.right)})


VARIANTS = (
    _Variant("e4m3 row", _E4M3, _E4M3, goal=Goal(0.90, ROW_WISE)),
    _Variant("e4m3 block", _E4M3, _E4M3, "group", "block", goal=Goal(0.80, ROW_WISE)),
    _Variant("int8 row", torch.int8, torch.int8),
    _Variant("e4m3 row fast", _E4M3, _E4M3, fast=True, goal=Goal(0.90, f"{ROW_WISE}, fast sums")),
    _Variant("e5m2 row", _E5M2, _E5M2, timed=False),
    _Variant("e5m2 e4m3 row", _E5M2, _E4M3, timed=False),
    _Variant("e4m3 tensor", _E4M3, _E4M3, "tensor", "tensor", timed=False),
)


def checks(tiny: bool) -> Iterator[Check]:
    """Return checks of odd sizes and, for what is timed, of a product of the models.

    They are few: each tile that is tried for a shape is compiled, which takes a second or two.
    """
    for variant in VARIANTS:
        asked = [((3, 160, 20), "none")] if tiny else [((17, 200, 70), "gelu")]
        if variant.timed and not tiny:
            asked += [((130, 7168, 2112), "none"), ((1, 4096, 6144), "none")]
        for shape, activation in asked:
            run = functools.partial(_compare, variant, shape, activation)
            yield Check(variant.name, f"{'x'.join(map(str, shape))} {activation}", run, variant.needs)


def _compare(variant: _Variant, shape: tuple[int, int, int], activation: str, device: torch.device) -> str:
    from autoprec.kernels.jit.scaled_mm import launch

    m, k, n = shape
    cpu = torch.device("cpu")
    left = quantized(normal(cpu, m, k), variant.left, variant.left_scales, False, None)
    right = quantized(normal(cpu, n, k, seed=1), variant.right, variant.right_scales, False, None)
    operands = (*left[:2], *right[:2], normal(cpu, n, seed=2))
    expected = reference(*operands, activation, torch.float32, variant.fast)
    found = launch(*(item.to(device) for item in operands), activation, torch.float32, variant.fast)
    # Integers are summed exactly. Hopper cuts a running sum at 2^-13 of it in each step of 32 elements: 4 or
    # 8 of them where it is promoted, and 224 along 7168 elements where it is `fast`.
    tolerance = 1e-5 if variant.left is torch.int8 else 3e-2 if variant.fast else 2e-3
    return too_far(found, expected, tolerance)


def timings() -> Iterator[Timing]:
    """Return every product of the models in every timed variant."""
    for rows, projection in products():
        for variant in VARIANTS:
            if variant.timed:
                yield Timing(
                    variant.name,
                    {"rows": rows, "inputs": projection.inputs, "outputs": projection.outputs},
                    projection.name,
                    "int8" if variant.left is torch.int8 else "fp8",
                    functools.partial(_prepare, variant, rows, projection.inputs, projection.outputs),
                    variant.goal if rows >= _MANY else None,
                    variant.needs,
                )


def _prepare(variant: _Variant, m: int, k: int, n: int, device: torch.device) -> Work:
    inputs, weight = normal(device, m, k), normal(device, n, k, seed=1)
    left = quantize(inputs, variant.left, variant.left_scales)
    right = quantize(weight, variant.right, variant.right_scales)
    return Work(
        lambda: scaled_mm(left, right, fast=variant.fast),
        {**_rivals(variant, inputs, weight, left, right), BF16: lambda: F.linear(inputs, weight)},
        2.0 * m * n * k,
        bytes_of(left.values, left.scale, right.values, right.scale) + 2 * m * n,
    )


def _rivals(
    variant: _Variant, inputs: torch.Tensor, weight: torch.Tensor, left: Quantized, right: Quantized
) -> dict[str, Callable[[], object]]:
    if variant.left is torch.int8:
        # Its sums are int32, without scales: less work than ours.
        return {"torch._int_mm": lambda: torch._int_mm(left.values, right.values.t())}
    rows = [quantize(item, variant.left, "row") for item in (inputs, weight)]

    def row_wise() -> object:
        return torch._scaled_mm(
            rows[0].values,
            rows[1].values.t(),
            scale_a=rows[0].scale,
            scale_b=rows[1].scale.t(),
            out_dtype=torch.bfloat16,
            use_fast_accum=variant.fast,
        )

    if variant.left_scales != "group":
        return {variant.goal.of if variant.goal else ROW_WISE: row_wise}
    tall = left.scale.t().contiguous().t()  # scales of 1 × 128 are wanted along the rows

    def blocked() -> object:
        return torch._scaled_mm(
            left.values,
            right.values.t(),
            scale_a=tall,
            scale_b=right.scale.t(),
            out_dtype=torch.bfloat16,
        )

    return {ROW_WISE: row_wise, "torch._scaled_mm blocks": blocked}
