"""`fused_norm_quantize` in Triton: rows of up to 8192 are read once; longer ones once for each step."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from autoprec.kernels.formats import BLOCK_SIZE
from autoprec.kernels.jit.launch import (
    LONGEST_TILE,
    TILE,
    Case,
    hardware_fp8,
    on_its_device,
    power_above,
    raw,
)
from autoprec.kernels.jit.rounding import max_magnitude, round_to, scale_of
from autoprec.kernels.ops.quantize import KINDS, largest_of, scale_shape


@triton.jit
def _read(start, column, columns, stride_column, inside):
    """Load columns of rows in float32, 0 beyond the last."""
    mask = inside & (column < columns)
    return tl.load(start + column * stride_column, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _merge(tile, mask, here, seen, mean, squares, LAYER: tl.constexpr):
    """Add a part of `here` columns to mean and squared distances of `seen`: Chan, Golub and LeVeque, 1979."""
    if LAYER:
        part = tl.sum(tile, axis=1) / here
        centred = tl.where(mask, tile - part[:, None], 0.0)
        apart = part - mean
        squares += tl.sum(centred * centred, axis=1) + apart * (seen * here / (seen + here)) * apart
        mean += apart * (here / (seen + here))
    else:
        squares += tl.sum(tile * tile, axis=1)
    return mean, squares


@triton.jit
def _normed(tile, mean, factor, weight, bias, column, columns, BIASED: tl.constexpr):
    """Return the norm; 0 beyond the last column, where the weight reads as 0 (NaN if the row has a NaN)."""
    mask = column < columns
    scaled = (tile - mean[:, None]) * factor[:, None]
    scaled *= tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    if BIASED:
        scaled += tl.load(bias + column, mask=mask, other=0.0).to(tl.float32)
    return scaled


@triton.jit
def norm_quantize_rows(
    inputs, weight, bias, values, scales, amaxes, rows, columns, stride_row, stride_column, groups, eps,
    LARGEST: tl.constexpr, KIND: tl.constexpr, LAYER: tl.constexpr, BIASED: tl.constexpr,
    GROUPED: tl.constexpr, GROUP: tl.constexpr, HARDWARE: tl.constexpr, ONE_TILE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Normalise and quantise `ROWS` rows with a scale each, or (`GROUPED`) one for each `GROUP` columns."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[:, None]
    span = tl.arange(0, COLUMNS)[None, :]
    start = inputs + row[:, None] * stride_row
    mean = tl.zeros((ROWS,), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    if ONE_TILE:
        tile = _read(start, span.to(tl.int64), columns, stride_column, inside)
        mean, squares = _merge(tile, span < columns, columns * 1.0, 0.0, mean, squares, LAYER)
    else:
        for first in range(0, columns, COLUMNS):
            column = (first + span).to(tl.int64)
            part = _read(start, column, columns, stride_column, inside)
            here = tl.minimum(columns - first, COLUMNS) * 1.0
            mean, squares = _merge(part, column < columns, here, first * 1.0, mean, squares, LAYER)
    ones = tl.full((ROWS,), 1.0, tl.float32)
    factor = tl.div_rn(ones, tl.sqrt_rn(squares / (columns * 1.0) + eps))
    if ONE_TILE:
        normed = _normed(tile, mean, factor, weight, bias, span, columns, BIASED)
    if not GROUPED:
        if ONE_TILE:
            amax = max_magnitude(normed, 1)
        else:
            amax = tl.zeros((ROWS,), tl.float32)
            for first in range(0, columns, COLUMNS):
                column = (first + span).to(tl.int64)
                part = _read(start, column, columns, stride_column, inside)
                part = _normed(part, mean, factor, weight, bias, column, columns, BIASED)
                largest = max_magnitude(part, 1)
                amax = tl.maximum(amax, largest, propagate_nan=tl.PropagateNan.ALL)
        scale = scale_of(amax, LARGEST, False)
        tl.store(scales + row, scale, mask=row < rows)
        tl.store(amaxes + row, amax, mask=row < rows)
    for first in range(0, columns, COLUMNS):
        column = (first + span).to(tl.int64)
        if not ONE_TILE:
            part = _read(start, column, columns, stride_column, inside)
            normed = _normed(part, mean, factor, weight, bias, column, columns, BIASED)
        if GROUPED:
            boxes = tl.reshape(normed, (ROWS, COLUMNS // GROUP, GROUP))
            amax = max_magnitude(boxes, 2)
            scale = scale_of(amax, LARGEST, False)
            group = first // GROUP + tl.arange(0, COLUMNS // GROUP)[None, :]
            place = row[:, None] * groups + group
            tl.store(scales + place, scale, mask=inside & (group < groups))
            tl.store(amaxes + place, amax, mask=inside & (group < groups))
            scaled = tl.reshape(tl.div_rn(boxes, scale[:, :, None] + tl.zeros_like(boxes)), (ROWS, COLUMNS))
        else:
            scaled = tl.div_rn(normed, scale[:, None] + tl.zeros_like(normed))
        rounded = round_to(scaled, 0, KIND, False, HARDWARE)
        tl.store(values + row[:, None] * columns + column, rounded, mask=inside & (column < columns))


@on_its_device
def launch(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    norm: str,
    granularity: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `autoprec.kernels.ops.fused_norm_quantize.reference` by Triton."""
    rows, columns = inputs.shape
    values = inputs.new_empty(inputs.shape, dtype=dtype)
    shape = scale_shape(inputs.shape, granularity)
    if inputs.numel() == 0:
        amax = inputs.new_zeros(shape, dtype=torch.float32)
        return values, torch.full_like(amax, torch.finfo(torch.float32).tiny), amax
    amax = inputs.new_empty(shape, dtype=torch.float32)
    scale = torch.empty_like(amax)
    grouped = granularity == "group"
    hardware = hardware_fp8(inputs.device)
    held = max(min(power_above(columns), LONGEST_TILE), BLOCK_SIZE if grouped else 1)
    many = max(1, min(TILE // held, 32))
    norm_quantize_rows[(-(-rows // many),)](
        inputs, weight.contiguous(), weight if bias is None else bias.contiguous(),
        values if hardware else raw(values), scale, amax, rows, columns, *inputs.stride(), shape[1], eps,
        LARGEST=largest_of(dtype), KIND=KINDS[dtype], LAYER=norm == "layer", BIASED=bias is not None,
        GROUPED=grouped, GROUP=BLOCK_SIZE, HARDWARE=hardware, ONE_TILE=columns <= held, ROWS=many,
        COLUMNS=held, num_warps=8 if held == LONGEST_TILE else 4,
    )  # fmt: skip
    return values, scale, amax


def _cases() -> tuple[Case, ...]:
    sizes = dict.fromkeys(("rows", "columns", "stride_row", "stride_column", "groups"), "i32")
    floats = dict.fromkeys(("inputs", "weight", "bias"), "*bf16")
    cases = []
    for kind, out, hardware in (("int8", "*i8", True), ("e4m3", "*fp8e4nv", True), ("e4m3", "*u8", False)):
        signature = floats | {"values": out, "scales": "*fp32", "amaxes": "*fp32", "eps": "fp32"} | sizes
        common = {
            "LARGEST": largest_of({name: dtype for dtype, name in KINDS.items()}[kind]),
            "KIND": kind, "GROUP": BLOCK_SIZE, "HARDWARE": hardware, "ROWS": 1,
        }  # fmt: skip
        name = f"fused_norm_quantize.{kind}{'' if hardware else '_integer'}"
        operands = ("float8_e4m3fn",) if out == "*fp8e4nv" else ()
        for variant, layer, grouped, held, one in (
            ("rms.row", False, False, 4096, True),
            ("layer.row", True, False, LONGEST_TILE, True),
            ("rms.group", False, True, 4096, True),
            ("layer.long", True, False, LONGEST_TILE, False),
        ):
            constants = common | {
                "LAYER": layer, "BIASED": layer, "GROUPED": grouped, "ONE_TILE": one, "COLUMNS": held,
            }  # fmt: skip
            warps = 8 if held == LONGEST_TILE else 4
            cases.append(
                Case(
                    f"{name}.{variant}",
                    norm_quantize_rows,
                    signature,
                    constants,
                    operands,
                    warps=warps,
                    unit=("stride_column",),
                    odd=("groups",),
                )
            )
    return tuple(cases)


CASES = _cases()
