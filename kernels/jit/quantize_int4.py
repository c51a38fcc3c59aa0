"""`quantize_int4` in Triton: one pass over the weight."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from autoprec.kernels.formats import GROUP_SIZE
from autoprec.kernels.jit.launch import Case, on_its_device
from autoprec.kernels.jit.rounding import round_even, to_bf16

_ROWS = 32
"""Channels a program, of one group each."""


@triton.jit
def quantize_groups(
    weight, packed, scales, zeros, rows, columns, stride_row, stride_column, groups,
    ROWS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Quantise a group of `ROWS` channels and pack it."""
    # On one axis of the grid: the others end at 65 535.
    row = (tl.program_id(0) // groups).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    group = tl.program_id(0) % groups
    column = group.to(tl.int64) * GROUP + tl.arange(0, GROUP)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    place = row[:, None] * stride_row + column[None, :] * stride_column
    tile = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    # The last group may be shorter: its extremes are those of what is there.
    there = (column < columns)[None, :]
    low = tl.min(tl.where(there, tile, float("inf")), axis=1)
    high = tl.max(tl.where(there, tile, float("-inf")), axis=1)
    scale = tl.div_rn(high - low, tl.full((ROWS,), 15.0, tl.float32))
    scale = tl.where(scale < 1.1754943508222875e-38, 1.1754943508222875e-38, scale)
    held = to_bf16(scale, 0, False)
    scale = held.to(tl.float32)
    zero = to_bf16(low + 8.0 * scale, 0, False)
    tl.store(scales + row * groups + group, held, mask=row < rows)
    tl.store(zeros + row * groups + group, zero, mask=row < rows)
    wide = scale[:, None] + tl.zeros_like(tile)
    steps = tl.div_rn(tile - zero.to(tl.float32)[:, None], wide)
    # Clamped first, as `round_even` is right up to 2^22. Groups whose extremes overflow have no steps.
    steps = tl.minimum(tl.maximum(tl.where(steps == steps, steps, -8.0), -9.0), 8.0)
    value = tl.minimum(tl.maximum(round_even(steps + 8.0), 0.0), 15.0).to(tl.int32)
    value = tl.where(there, value, 0)
    lower, upper = tl.split(tl.reshape(value, (ROWS, GROUP // 2, 2)))
    byte = group.to(tl.int64) * (GROUP // 2) + tl.arange(0, GROUP // 2)
    stride = (columns + 1) // 2
    mask = (row < rows)[:, None] & (byte < stride)[None, :]
    tl.store(packed + row[:, None] * stride + byte[None, :], (lower | (upper << 4)).to(tl.uint8), mask=mask)


@on_its_device
def launch(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `autoprec.kernels.ops.quantize_int4.reference` by Triton."""
    rows, columns = weight.shape
    groups = -(-columns // GROUP_SIZE)
    packed = weight.new_empty((rows, -(-columns // 2)), dtype=torch.uint8)
    scale = weight.new_empty((rows, groups), dtype=torch.bfloat16)
    zero = torch.empty_like(scale)
    if rows:
        quantize_groups[(-(-rows // _ROWS) * groups,)](
            weight, packed, scale, zero, rows, columns, *weight.stride(), groups, ROWS=_ROWS,
            GROUP=GROUP_SIZE, num_warps=4,
        )  # fmt: skip
    return packed, scale, zero


def _cases() -> tuple[Case, ...]:
    sizes = dict.fromkeys(("rows", "columns", "stride_row", "stride_column", "groups"), "i32")
    outputs = {"packed": "*u8", "scales": "*bf16", "zeros": "*bf16"}
    return tuple(
        Case(
            f"quantize_int4.{name}",
            quantize_groups,
            {"weight": f"*{name}"} | outputs | sizes,
            {"ROWS": _ROWS, "GROUP": GROUP_SIZE},
            unit=("stride_column",),
            odd=("groups",),
        )
        for name in ("fp32", "bf16")
    )


CASES = _cases()
