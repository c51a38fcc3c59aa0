"""`low_bit_adam` in Triton: parameter, gradient and moments are read once and written once."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from autoprec.kernels.jit.launch import Case, on_its_device
from autoprec.kernels.jit.rounding import decode_fp8, encode_fp8, max_magnitude, scale_of, to_bf16
from autoprec.kernels.ops.low_bit_adam import BLOCK, SMALLEST_ROOT, corrected

_BLOCKS = 8
"""Blocks a program."""


@triton.jit
def _load_moment(values, scales, place, mask, block, count, BLOCK: tl.constexpr):
    """Load a moment in float32."""
    held = tl.load(values + place, mask=mask, other=0)
    if values.dtype.element_ty == tl.uint8:
        scale = tl.load(scales + block, mask=block * BLOCK < count, other=0.0)
        number = decode_fp8(held, 3) * scale[:, None]
    else:
        number = held.to(tl.float32)
    return number


@triton.jit
def _store_moment(
    number, values, scales, place, mask, block, count, random,
    FLOOR: tl.constexpr, STOCHASTIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Round a moment; numbers above 0 become at least `FLOOR` times their scale."""
    if values.dtype.element_ty == tl.uint8:
        scale = scale_of(max_magnitude(number, 1), 448.0, False)
        scaled = tl.div_rn(number, scale[:, None] + tl.zeros_like(number))
        scaled = tl.where((number > 0) & (scaled < FLOOR), FLOOR, scaled)
        tl.store(values + place, encode_fp8(scaled, random, 3, STOCHASTIC), mask=mask)
        tl.store(scales + block, scale, mask=block * BLOCK < count)
    else:
        tl.store(values + place, to_bf16(number, random, STOCHASTIC), mask=mask)


@triton.jit(do_not_specialize=("seed",))
def adam_blocks(
    parameter, gradient, first, first_scale, second, second_scale, count, size, correction, kept, beta1,
    rest1, beta2, rest2, eps, seed,
    FLOOR: tl.constexpr, STOCHASTIC: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Do the step for `BLOCKS` blocks."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    place = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = place < count
    before = tl.load(parameter + place, mask=mask, other=0.0).to(tl.float32)
    slope = tl.load(gradient + place, mask=mask, other=0.0).to(tl.float32)
    mean = _load_moment(first, first_scale, place, mask, block, count, BLOCK) * beta1 + slope * rest1
    root = _load_moment(second, second_scale, place, mask, block, count, BLOCK)
    root = tl.sqrt_rn(root * root * beta2 + slope * rest2 * slope)
    under = root * correction + eps
    moved = before * kept - tl.div_rn(mean, under) * size
    if STOCHASTIC:
        # 7 rounds of Philox pass the tests of randomness (Salmon et al., 2011). The place wraps after 2^32.
        one, two, three, _ = tl.randint4x(seed, place.to(tl.uint32), n_rounds=7)
        one = one.to(tl.uint32, bitcast=True)
        two = two.to(tl.uint32, bitcast=True)
        three = three.to(tl.uint32, bitcast=True)
    else:
        one = 0
        two = 0
        three = 0
    _store_moment(mean, first, first_scale, place, mask, block, count, one, 0.0, STOCHASTIC, BLOCK)
    _store_moment(root, second, second_scale, place, mask, block, count, two, FLOOR, STOCHASTIC, BLOCK)
    if parameter.dtype.element_ty == tl.bfloat16:
        moved = to_bf16(moved, three, STOCHASTIC)
    tl.store(parameter + place, moved, mask=mask)


@on_its_device
def launch(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    first_scale: Tensor,
    second: Tensor,
    second_scale: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    step: int,
    seed: int | None,
) -> None:
    """Compute `autoprec.kernels.ops.low_bit_adam.reference` by Triton."""
    count = parameter.numel()
    if count == 0:
        return
    # Without fused multiply-adds every bit is the reference's.
    adam_blocks[(-(-count // (BLOCK * _BLOCKS)),)](
        parameter, gradient, first, first_scale, second, second_scale, count,
        *corrected(lr, beta1, beta2, decay, step), beta1, 1 - beta1, beta2, 1 - beta2, eps, seed or 0,
        FLOOR=SMALLEST_ROOT, STOCHASTIC=seed is not None, BLOCKS=_BLOCKS, BLOCK=BLOCK, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip


def _cases() -> tuple[Case, ...]:
    numbers = dict.fromkeys(
        ("size", "correction", "kept", "beta1", "rest1", "beta2", "rest2", "eps"), "fp32"
    ) | {"count": "i32", "seed": "i32", "first_scale": "*fp32", "second_scale": "*fp32"}
    cases = []
    for name, kind, first, second, stochastic in (
        ("fp32_8_8", "*fp32", "*u8", "*u8", True),
        ("bf16_8_8", "*bf16", "*u8", "*u8", True),
        ("bf16_16_8", "*bf16", "*bf16", "*u8", True),
        ("fp32_16_16", "*fp32", "*bf16", "*bf16", False),
    ):
        signature = numbers | {"parameter": kind, "gradient": kind, "first": first, "second": second}
        constants = {"FLOOR": SMALLEST_ROOT, "STOCHASTIC": stochastic, "BLOCKS": _BLOCKS, "BLOCK": BLOCK}
        cases.append(Case(f"low_bit_adam.{name}", adam_blocks, signature, constants))
    return tuple(cases)


CASES = _cases()
