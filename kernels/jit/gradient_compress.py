"""`gradient_compress` and its undoing in Triton: one pass over memory each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from autoprec.kernels.jit.launch import Case, on_its_device
from autoprec.kernels.jit.rounding import max_magnitude, round_to, scale_of, to_bf16
from autoprec.kernels.ops.gradient_compress import BLOCK, blocks_of

_BLOCKS = 8
"""Blocks a program."""


@triton.jit
def compress_blocks(
    gradient, residual, values, scales, count, BLOCKS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Round `BLOCKS` blocks to int8 and keep what is lost."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    place = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = place < count
    before = tl.load(residual + place, mask=mask, other=0.0)
    total = tl.load(gradient + place, mask=mask, other=0.0).to(tl.float32) + before
    scale = scale_of(max_magnitude(total, 1), 127.0, False)
    wide = scale[:, None] + tl.zeros_like(total)
    code = round_to(tl.div_rn(total, wide), 0, "int8", False, False)
    lost = tl.where(wide < float("inf"), total - code.to(tl.float32) * wide, before)
    tl.store(values + place, code, mask=mask)
    tl.store(residual + place, lost, mask=mask)
    tl.store(scales + block, scale, mask=block * BLOCK < count)


@triton.jit
def decompress_blocks(
    values, scales, out, count, ADD: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write what `BLOCKS` blocks stand for, or (`ADD`) add it to what is there."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    place = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = place < count
    scale = tl.load(scales + block, mask=block * BLOCK < count, other=0.0)[:, None]
    number = tl.load(values + place, mask=mask, other=0).to(tl.float32) * scale
    if ADD:
        number = tl.load(out + place, mask=mask, other=0.0).to(tl.float32) + number
    if out.dtype.element_ty == tl.bfloat16:
        number = to_bf16(number, 0, False)
    tl.store(out + place, number, mask=mask)


@on_its_device
def launch(gradient: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `autoprec.kernels.ops.gradient_compress.reference` by Triton."""
    blocks = blocks_of(gradient)
    values = torch.empty_like(gradient, dtype=torch.int8)
    scale = gradient.new_empty(blocks, dtype=torch.float32)
    if blocks:
        # A fused multiply-add would keep another residual than what the receiver misses.
        compress_blocks[(-(-blocks // _BLOCKS),)](
            gradient, residual, values, scale, gradient.numel(), BLOCKS=_BLOCKS, BLOCK=BLOCK, num_warps=8,
            enable_fp_fusion=False,
        )  # fmt: skip
    return values, scale


@on_its_device
def launch_decompress(values: Tensor, scale: Tensor, out: Tensor, add: bool) -> None:
    """Compute `autoprec.kernels.ops.gradient_compress.reference_decompress` by Triton."""
    if values.numel():
        decompress_blocks[(-(-scale.numel() // _BLOCKS),)](
            values, scale, out, values.numel(), ADD=add, BLOCKS=_BLOCKS, BLOCK=BLOCK, num_warps=4,
            enable_fp_fusion=False,
        )  # fmt: skip


def _cases() -> tuple[Case, ...]:
    sizes = {"BLOCKS": _BLOCKS, "BLOCK": BLOCK}
    cases = []
    for kind, pointer in (("fp32", "*fp32"), ("bf16", "*bf16")):
        sent = {"values": "*i8", "scales": "*fp32", "count": "i32"}
        compress = sent | {"gradient": pointer, "residual": "*fp32"}
        out = sent | {"out": pointer}
        cases += [
            Case(f"gradient_compress.{kind}", compress_blocks, compress, sizes, warps=8),
            *(
                Case(f"{name}_{kind}", decompress_blocks, out, sizes | {"ADD": add})
                for name, add in (("gradient_compress.write", False), ("gradient_compress.add", True))
            ),
        ]
    return tuple(cases)


CASES = _cases()
