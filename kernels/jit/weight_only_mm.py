"""`weight_only_mm` in Triton: matrix instructions for many rows, a weighted sum for the few of decoding."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from autoprec.kernels.formats import GROUP_SIZE
from autoprec.kernels.jit.launch import INTERPRETED, Case, on_its_device, power_above
from autoprec.kernels.jit.tiles import Tile, choose, tile_order

FEW_ROWS = 4
"""Rows up to which the weighted sum is used: with more, 16 rows of a matrix unit are cheaper."""
TILES = (
    Tile(16, 64, 64, 4, 4),
    Tile(32, 64, 64, 4, 4),
    Tile(64, 64, 64, 4, 4),
    Tile(64, 128, 64, 4, 3),
    Tile(128, 128, 64, 8, 3),
)
"""Candidates; a step is one group of 4-bit weights."""
_COLUMNS, _STEP = 8, 1024
"""Outputs of a program of the weighted sum, and inputs it reads at once."""


@triton.jit
def weight_only_tiles(
    inputs, weight, scale, zero, bias, out, m, n, k, stride_inputs, stride_weight, groups,
    FOUR: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute one tile of [m, n].

    The integers enter the product as bfloat16, exactly; scale and zero point are applied to the sum of each
    group, so that nothing but the inputs is rounded. `UPCAST`: the interpreter cannot multiply bfloat16.
    """
    tile_m, tile_n = tile_order(m, n, BLOCK_M, BLOCK_N)
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    safe_row = (row % m).to(tl.int64)
    safe_column = (column % n).to(tl.int64)
    along = tl.arange(0, BLOCK_K)
    halves = tl.arange(0, BLOCK_K // 2)
    inputs_at = inputs + safe_row[:, None] * stride_inputs + along[None, :]
    if FOUR:
        weight_at = weight + safe_column[:, None] * stride_weight + halves[None, :]
    else:
        weight_at = weight + safe_column[:, None] * stride_weight + along[None, :]
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(k, BLOCK_K)):
        left = k - step * BLOCK_K
        if EVEN:
            x = tl.load(inputs_at)
            packed = tl.load(weight_at)
        else:
            x = tl.load(inputs_at, mask=(along < left)[None, :], other=0.0)
            if FOUR:
                packed = tl.load(weight_at, mask=(halves * 2 < left)[None, :], other=0)
            else:
                packed = tl.load(weight_at, mask=(along < left)[None, :], other=0)
        x = x.to(tl.bfloat16)
        if FOUR:
            packed = packed.to(tl.int32)
            whole = tl.interleave((packed & 15) - 8, (packed >> 4) - 8)
        else:
            whole = packed
        if UPCAST:
            part = tl.dot(x.to(tl.float32), tl.trans(whole.to(tl.float32)))
        else:
            part = tl.dot(x, tl.trans(whole.to(tl.bfloat16)))
        if FOUR:
            place = safe_column * groups + step
            sums += part * tl.load(scale + place).to(tl.float32)[None, :]
            sums += tl.sum(x.to(tl.float32), 1)[:, None] * tl.load(zero + place).to(tl.float32)[None, :]
            weight_at += BLOCK_K // 2
        else:
            sums += part
            weight_at += BLOCK_K
        inputs_at += BLOCK_K
    if not FOUR:
        sums = sums * tl.load(scale + safe_column).to(tl.float32)[None, :]
    if HAS_BIAS:
        sums += tl.load(bias + safe_column).to(tl.float32)[None, :]
    out_at = out + row.to(tl.int64)[:, None] * n + column[None, :]
    tl.store(out_at, sums.to(out.dtype.element_ty), mask=(row < m)[:, None] & (column < n)[None, :])


@triton.jit
def weight_only_rows(
    inputs, weight, scale, zero, bias, out, n, k, stride_inputs, stride_weight, groups,
    FOUR: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr,
    COLUMNS: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute `COLUMNS` outputs of each of `ROWS` rows: the weights are read once, for all rows."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    safe_column = (column % n).to(tl.int64)
    rows = tl.arange(0, PADDED)
    sums = tl.zeros((PADDED, COLUMNS), tl.float32)
    group = tl.arange(0, STEP // GROUP)
    half = tl.arange(0, GROUP // 2)
    # In steps of pairs: that `first // 2` is a multiple of 16, the compiler would not see.
    for first_pair in range(0, tl.cdiv(k, 2), STEP // 2):
        first = first_pair * 2
        if FOUR:
            byte = first_pair + tl.arange(0, STEP // 2)
            at = weight + safe_column[:, None] * stride_weight + byte[None, :]
            if EVEN:  # a mask that changes only between groups leaves loads of 16 bytes whole
                loaded = tl.load(at, mask=(byte // (GROUP // 2) < groups)[None, :], other=0)
            else:
                loaded = tl.load(at, mask=(byte * 2 < k)[None, :], other=0)
            # [columns, groups, half a group]; the low halves are the even inputs
            packed = tl.reshape(loaded, (COLUMNS, STEP // GROUP, GROUP // 2)).to(tl.int32)
            even = first + 2 * (group[:, None] * (GROUP // 2) + half[None, :])
            low = ((packed & 15) - 8).to(tl.float32)
            high = ((packed >> 4) - 8).to(tl.float32)
            within = (first // GROUP + group < groups)[None, :]
            place = safe_column[:, None] * groups + (first // GROUP + group)[None, :]
            scales = tl.load(scale + place, mask=within, other=0.0).to(tl.float32)
            zeros = tl.load(zero + place, mask=within, other=0.0).to(tl.float32)
            for row in tl.static_range(ROWS):
                start = inputs + tl.full((), row, tl.int64) * stride_inputs
                x = tl.load(start + even, mask=even < k, other=0.0).to(tl.bfloat16).to(tl.float32)
                y = tl.load(start + even + 1, mask=even + 1 < k, other=0.0).to(tl.bfloat16).to(tl.float32)
                part = tl.sum(low * x[None] + high * y[None], 2) * scales + tl.sum(x + y, 1)[None, :] * zeros
                sums += tl.where((rows == row)[:, None], tl.sum(part, 1)[None, :], 0.0)
        else:
            along = first + tl.arange(0, STEP)
            at = weight + safe_column[:, None] * stride_weight + along[None, :]
            whole = tl.load(at, mask=(along < k)[None, :], other=0).to(tl.float32)
            for row in tl.static_range(ROWS):
                start = inputs + tl.full((), row, tl.int64) * stride_inputs
                x = tl.load(start + along, mask=along < k, other=0.0)
                part = tl.sum(whole * x.to(tl.bfloat16).to(tl.float32)[None, :], 1)
                sums += tl.where((rows == row)[:, None], part[None, :], 0.0)
    if not FOUR:
        sums = sums * tl.load(scale + safe_column).to(tl.float32)[None, :]
    if HAS_BIAS:
        sums += tl.load(bias + safe_column).to(tl.float32)[None, :]
    out_at = out + rows[:, None].to(tl.int64) * n + column[None, :]
    tl.store(out_at, sums.to(out.dtype.element_ty), mask=(rows < ROWS)[:, None] & (column < n)[None, :])


@on_its_device
def launch(inputs: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> Tensor:
    """Compute `autoprec.kernels.ops.weight_only_mm.reference` by Triton."""
    (m, k), n = inputs.shape, weight.shape[0]
    out = inputs.new_empty((m, n))
    if out.numel() == 0:
        return out
    inputs = inputs if inputs.stride(1) == 1 else inputs.contiguous()
    weight, scale = weight.contiguous(), scale.contiguous()
    bias = None if bias is None else bias.contiguous()
    four = zero is not None
    zero = scale if zero is None else zero.contiguous()
    common = {"FOUR": four, "HAS_BIAS": bias is not None}
    pointers = (inputs, weight, scale, zero, out if bias is None else bias, out)
    sizes = (n, k, inputs.stride(0), weight.stride(0), -(-k // GROUP_SIZE))
    if m <= FEW_ROWS:
        weight_only_rows[(-(-n // _COLUMNS),)](
            *pointers, *sizes, **common, EVEN=k % GROUP_SIZE == 0, ROWS=m, PADDED=power_above(m),
            COLUMNS=_COLUMNS, STEP=max(min(power_above(k), _STEP), GROUP_SIZE), GROUP=GROUP_SIZE,
            num_warps=4,
        )  # fmt: skip
        return out

    def run(tile: Tile) -> None:
        weight_only_tiles[(tile.count(m, n),)](
            *pointers, m, *sizes, **common, EVEN=k % tile.k == 0, UPCAST=INTERPRETED, **tile.options()
        )

    run(choose(("weight_only_mm", four), TILES, (m, n, k), 2, inputs.device, run))
    return out


def _cases() -> tuple[Case, ...]:
    numbers = ("m", "n", "k", "stride_inputs", "stride_weight", "groups")
    cases = []
    for name, kind in (("int8", "*i8"), ("int4", "*u8")):
        signature = {
            "inputs": "*bf16", "weight": kind, "scale": "*bf16", "zero": "*bf16", "bias": "*bf16",
            "out": "*bf16",
            **dict.fromkeys(numbers, "i32"),
        }  # fmt: skip
        common = {"FOUR": name == "int4", "HAS_BIAS": True}
        rows = common | {
            "EVEN": True, "ROWS": 1, "PADDED": 1, "COLUMNS": _COLUMNS, "STEP": _STEP, "GROUP": GROUP_SIZE,
        }  # fmt: skip
        of = f"weight_only_mm.{name}"
        cases.append(Case(f"{of}.rows", weight_only_rows, signature, rows, ("bfloat16",), odd=("groups",)))
        for tile in (TILES[0], TILES[3]):
            constants = common | {"EVEN": True, "UPCAST": False} | tile.sizes()
            cases.append(
                Case(
                    f"{of}.{tile.m}x{tile.n}",
                    weight_only_tiles,
                    signature,
                    constants,
                    ("bfloat16",),
                    matrix=True,
                    warps=tile.warps,
                    stages=tile.stages,
                    odd=("groups",),
                )
            )
    return tuple(cases)


CASES = _cases()
