"""Whole linear layers in each format, quantising of the activations included: what a device profile tells."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from autoprec.kernels.ops.quantize import quantize
from autoprec.kernels.ops.scaled_mm import scaled_mm
from autoprec.kernels.ops.weight_only_mm import weight_only_mm
from benchmarks.kernels.cases import Check, normal
from benchmarks.kernels.comparing import too_far
from benchmarks.kernels.subjects.weight_only_mm import packed

OPERATION = "layer"
"""What the checks of layers are listed under."""
BASELINE = "bf16"
"""The format that every other is timed against."""
Layer = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LayerFormat:
    """A way to compute a linear layer in a format.

    Attributes:
        format: A key of `autoprec.kernels.formats.FORMATS`.
        implementation: What computes it.
        build: From a bfloat16 weight [outputs, inputs], a function of activations [rows, inputs].
        tolerance: Largest error against float32 for normal numbers, RMS by RMS.
        dtype: Of the activations.
        parts: Operation and variant of the kernels that it runs.
        needs: Number types that the device must multiply.
    """

    format: str
    implementation: str
    build: Callable[[Tensor], Layer]
    tolerance: float
    dtype: torch.dtype = torch.bfloat16
    parts: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()


def _plain(dtype: torch.dtype, weight: Tensor) -> Layer:
    held = weight.to(dtype)
    return lambda rows: F.linear(rows, held)


def _scaled(dtype: torch.dtype, rows_by: str, weights_by: str, weight: Tensor) -> Layer:
    held = quantize(weight, dtype, weights_by)
    return lambda rows: scaled_mm(quantize(rows, dtype, rows_by), held)


def _weight_only(variant: str, weight: Tensor) -> Layer:
    values, scale, zero = packed(variant, weight)
    return lambda rows: weight_only_mm(rows, values, scale, zero)


def _eight(
    name: str, dtype: torch.dtype, kind: str, variant: str, tolerance: float, by: tuple[str, str]
) -> LayerFormat:
    return LayerFormat(
        name,
        "triton",
        functools.partial(_scaled, dtype, *by),
        tolerance,
        parts=(("quantize", f"{kind} {by[0]}"), ("quantize", f"{kind} {by[1]}"), ("scaled_mm", variant)),
        needs=(str(dtype).removeprefix("torch."),),
    )


_ROWS = ("row", "row")
# Tolerances: twice what rounding of the operands alone gives on normal numbers, seen by the references.
LAYERS = (
    LayerFormat("bf16", "torch", functools.partial(_plain, torch.bfloat16), 0.01),
    LayerFormat("fp16", "torch", functools.partial(_plain, torch.float16), 0.01, torch.float16),
    LayerFormat("fp32", "torch", functools.partial(_plain, torch.float32), 0.01, torch.float32),
    _eight("fp8_e4m3", torch.float8_e4m3fn, "e4m3", "e4m3 row", 0.08, _ROWS),
    _eight("fp8_block", torch.float8_e4m3fn, "e4m3", "e4m3 block", 0.08, ("group", "block")),
    _eight("int8_dynamic_row", torch.int8, "int8", "int8 row", 0.04, _ROWS),
    LayerFormat(
        "int4_weight_only", "triton", functools.partial(_weight_only, "int4"), 0.2,
        parts=(("weight_only_mm", "int4"),), needs=("bfloat16",),
    ),
    LayerFormat(
        "int8_weight_only", "triton", functools.partial(_weight_only, "int8"), 0.02,
        parts=(("weight_only_mm", "int8"),), needs=("bfloat16",),
    ),
    _eight("fp8_e5m2", torch.float8_e5m2, "e5m2", "e5m2 row", 0.16, _ROWS),
)  # fmt: skip


def needed() -> set[str]:
    """Return the operations that layers run."""
    return {operation for layer in LAYERS for operation, _ in layer.parts}


def checks(tiny: bool) -> Iterator[Check]:
    """Return a check for each format: a layer is near the same one in float32."""
    for layer in LAYERS:
        for rows, inputs, outputs in ((3, 128, 48),) if tiny else ((1, 4096, 512), (200, 1536, 512)):
            run = functools.partial(_compare, layer, rows, inputs, outputs)
            yield Check(layer.format, f"{rows}x{inputs}x{outputs}", run, layer.needs)


def _compare(layer: LayerFormat, m: int, k: int, n: int, device: torch.device) -> str:
    rows, weight = normal(device, m, k), normal(device, n, k, seed=1)
    with torch.no_grad():
        found = layer.build(weight)(rows.to(layer.dtype))
    return too_far(found, F.linear(rows.cpu().float(), weight.cpu().float()), layer.tolerance)
