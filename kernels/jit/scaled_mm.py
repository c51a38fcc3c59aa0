"""`scaled_mm` in Triton: tiles of 128 × 128 and others, chosen by a roofline model and by timing."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from autoprec.kernels.formats import BLOCK_SIZE
from autoprec.kernels.jit.launch import Case, hardware_fp8, on_its_device
from autoprec.kernels.jit.tiles import Tile, choose, tile_order
from autoprec.kernels.ops.scaled_mm import reference

TILES = (
    Tile(16, 64, 256, 4, 4),
    Tile(16, 128, 128, 4, 4),
    Tile(32, 64, 128, 4, 4),
    Tile(64, 64, 128, 4, 4),
    Tile(64, 128, 128, 4, 4),
    Tile(128, 128, 128, 8, 3),
    Tile(128, 256, 128, 8, 3),
)
"""Candidates, of which `largest_area` leaves those whose sums stay in registers."""


def largest_area(blocked: bool, whole: bool, hip: bool) -> int:
    """Return the most elements of a tile that spill no registers, as the compiled code says.

    Args:
        blocked: Scales change along k, so that each step is summed apart, in the registers of two tiles.
        whole: The operands are integers.
        hip: For AMD, where Triton widens fp8 to fp16 in registers.
    """
    if blocked or (hip and not whole):
        return 64 * 128
    return 128 * 256 if whole and not hip else 128 * 128


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """Apply an activation to float32."""
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    return x


@triton.jit
def scaled_mm(
    left, left_scale, right, right_scale, bias, out, m, n, k, stride_left, stride_right,
    left_row, left_block, right_row, right_block,
    LEFT_TALL: tl.constexpr, RIGHT_TALL: tl.constexpr, BLOCKED: tl.constexpr, WHOLE: tl.constexpr,
    PROMOTE: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute one tile of [m, n]; both operands are contiguous along k.

    A scale's address is `(row // TALL) * row stride + block * block stride`, with strides of 0 where it does
    not change. `BLOCKED` says that one does along k, whose steps are then its blocks.
    """
    tile_m, tile_n = tile_order(m, n, BLOCK_M, BLOCK_N)
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    along = tl.arange(0, BLOCK_K)
    # Rows beyond the end read the first ones instead, and are not stored.
    safe_row = (row % m).to(tl.int64)
    safe_column = (column % n).to(tl.int64)
    left_at = left + safe_row[:, None] * stride_left + along[None, :]
    right_at = right + safe_column[None, :] * stride_right + along[:, None]
    left_scale_at = left_scale + safe_row // LEFT_TALL * left_row
    right_scale_at = right_scale + safe_column // RIGHT_TALL * right_row
    if WHOLE and not BLOCKED:
        sums = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    else:
        sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(k, BLOCK_K)):
        if EVEN:
            a = tl.load(left_at)
            b = tl.load(right_at)
        else:
            inside = along < k - step * BLOCK_K
            a = tl.load(left_at, mask=inside[None, :], other=0.0)
            b = tl.load(right_at, mask=inside[:, None], other=0.0)
        if BLOCKED:
            if WHOLE:
                part = tl.dot(a, b, out_dtype=tl.int32).to(tl.float32)
            else:
                part = tl.dot(a, b, max_num_imprecise_acc=128)
            scale_a = tl.load(left_scale_at + step * left_block)
            scale_b = tl.load(right_scale_at + step * right_block)
            sums += part * scale_a[:, None] * scale_b[None, :]
        elif WHOLE:
            sums = tl.dot(a, b, sums, out_dtype=tl.int32)
        elif PROMOTE:
            # Without a bound, Triton folds the addition into the product on all but Hopper.
            sums += tl.dot(a, b, max_num_imprecise_acc=128)
        else:
            sums = tl.dot(a, b, sums)
        left_at += BLOCK_K
        right_at += BLOCK_K
    result = sums.to(tl.float32)
    if not BLOCKED:
        # One after the other: the product of two small scales may be no normal number.
        result = result * tl.load(left_scale_at)[:, None] * tl.load(right_scale_at)[None, :]
    if HAS_BIAS:
        result += tl.load(bias + safe_column).to(tl.float32)[None, :]
    result = activate(result, ACTIVATION)
    out_at = out + row.to(tl.int64)[:, None] * n + column[None, :]
    tl.store(out_at, result.to(out.dtype.element_ty), mask=(row < m)[:, None] & (column < n)[None, :])


@on_its_device
def launch(
    left: Tensor,
    left_scale: Tensor,
    right: Tensor,
    right_scale: Tensor,
    bias: Tensor | None,
    activation: str,
    out_dtype: torch.dtype,
    fast: bool,
) -> Tensor:
    """Compute `autoprec.kernels.ops.scaled_mm.reference` by Triton.

    Raises:
        ValueError: The GPU has no fp8 e4m3, which Triton would refuse at greater length.
    """
    nvidia = left.is_cuda and torch.version.hip is None
    if nvidia and torch.float8_e4m3fn in (left.dtype, right.dtype) and not hardware_fp8(left.device):
        raise ValueError(
            "fp8 e4m3 needs a GPU of compute capability 8.9 or more, "
            f"{torch.cuda.get_device_name(left.device)} has less; use int8 or bfloat16 there"
        )
    (m, k), n = left.shape, right.shape[0]
    out = left.new_empty((m, n), dtype=out_dtype)
    if out.numel() == 0:
        return out
    if k == 0:  # there are no scales along k to read
        return reference(left, left_scale, right, right_scale, bias, activation, out_dtype, fast)
    bias = None if bias is None else bias.contiguous()
    # The matrix unit reads both operands along k.
    left, right = _along_rows(left), _along_rows(right)
    blocked = max(left_scale.shape[1], right_scale.shape[1]) > 1
    left_tall, *left_strides = _scale_steps(left_scale, m)
    right_tall, *right_strides = _scale_steps(right_scale, n)
    arguments = (
        left, left_scale, right, right_scale, out if bias is None else bias, out, m, n, k,
        left.stride(0), right.stride(0), *left_strides, *right_strides,
    )  # fmt: skip
    constants: dict[str, Any] = {
        "LEFT_TALL": left_tall,
        "RIGHT_TALL": right_tall,
        "BLOCKED": blocked,
        "WHOLE": left.dtype is torch.int8,
        "PROMOTE": not fast and left.dtype is not torch.int8,
        "HAS_BIAS": bias is not None,
        "ACTIVATION": activation,
    }

    def run(tile: Tile) -> None:
        scaled_mm[(tile.count(m, n),)](*arguments, **constants, EVEN=k % tile.k == 0, **tile.options())

    most = largest_area(blocked, constants["WHOLE"], torch.version.hip is not None)
    candidates = [tile for tile in TILES if tile.m * tile.n <= most and (not blocked or tile.k == BLOCK_SIZE)]
    key = ("scaled_mm", str(left.dtype), str(right.dtype), blocked, constants["PROMOTE"])
    run(choose(key, candidates, (m, n, k), left.element_size(), left.device, run))
    return out


def _along_rows(matrix: Tensor) -> Tensor:
    return matrix if matrix.stride(1) == 1 else matrix.contiguous()


def _scale_steps(scale: Tensor, rows: int) -> tuple[int, int, int]:
    """Return how many rows share a scale, and the strides from one to the next down and along."""
    down = 0 if scale.shape[0] == 1 else scale.stride(0)
    along = 0 if scale.shape[1] == 1 else scale.stride(1)
    return (1 if scale.shape[0] == rows else BLOCK_SIZE), down, along


def _cases() -> tuple[Case, ...]:
    steps = ("left_row", "left_block", "right_row", "right_block")
    numbers = ("m", "n", "k", "stride_left", "stride_right", *steps)
    cases = []
    types = (
        ("e4m3", "*fp8e4nv", "*fp8e4nv", ("float8_e4m3fn",)),
        ("e5m2_e4m3", "*fp8e5", "*fp8e4nv", ("float8_e4m3fn", "float8_e5m2")),
        ("e5m2", "*fp8e5", "*fp8e5", ("float8_e5m2",)),
        ("int8", "*i8", "*i8", ("int8",)),
    )
    for (name, left, right, operands), scales in itertools.product(types, ("row", "fast", "block")):
        blocked, whole, promote = scales == "block", name == "int8", scales == "row" and name != "int8"
        if whole and scales == "fast":
            continue  # there it changes nothing
        # What is slow to compile differs little between the kinds of fp8.
        for tile in TILES if name in ("e4m3", "int8") and scales != "fast" else TILES[1:5:3]:
            area = tile.m * tile.n
            if area > largest_area(blocked, whole, False) or (blocked and tile.k != BLOCK_SIZE):
                continue
            signature = {
                "left": left, "left_scale": "*fp32", "right": right, "right_scale": "*fp32", "bias": "*bf16",
                "out": "*bf16", **dict.fromkeys(numbers, "i32"),
            }  # fmt: skip
            constants = {
                "LEFT_TALL": 1, "RIGHT_TALL": BLOCK_SIZE if blocked else 1, "BLOCKED": blocked,
                "WHOLE": whole, "PROMOTE": promote, "HAS_BIAS": True, "ACTIVATION": "none", "EVEN": True,
                **tile.sizes(),
            }  # fmt: skip
            cases.append(
                Case(
                    f"scaled_mm.{name}.{scales}.{tile.m}x{tile.n}",
                    scaled_mm,
                    signature,
                    constants,
                    operands,
                    matrix=True,
                    warps=tile.warps,
                    stages=tile.stages,
                    backend="" if area <= largest_area(blocked, whole, True) else "cuda",
                    odd=steps,
                )
            )
    return tuple(cases)


CASES = _cases()
