"""`quantize` in Triton: one pass over rows, columns, groups or blocks; two for one scale a tensor."""

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
from autoprec.kernels.ops.quantize import KINDS, amax_of, largest_of, scale_from, scale_shape

_WARPS = {"tensor": 8, "group": 8, "block": 16}
"""Warps a program of `quantize_tiles`."""


def _strip(granularity: str, tall: int, stochastic: bool) -> int:
    """Return how many rows of a tile are rounded at once."""
    return 32 if granularity == "block" and stochastic else tall


@triton.jit
def _random(seed, row, column, columns, STOCHASTIC: tl.constexpr):
    """Draw 32 bits for each element, by its place in the matrix: Philox 4×32."""
    if STOCHASTIC:
        # Philox takes 32 bits of place: the place wraps after 2^32 elements, and the draws repeat.
        place = row.to(tl.uint32) * columns + column.to(tl.uint32)
        bits = tl.randint(seed, place).to(tl.uint32, bitcast=True)
    else:
        bits = tl.zeros((1, 1), tl.uint32)
    return bits


@triton.jit(do_not_specialize=("seed",))
def quantize_lines(
    matrix, values, scales, amaxes, lines, length, stride_line, stride_along, out_line, out_along, columns,
    seed,
    LARGEST: tl.constexpr, KIND: tl.constexpr, POWER_OF_TWO: tl.constexpr, STOCHASTIC: tl.constexpr,
    HARDWARE: tl.constexpr, TRANSPOSED: tl.constexpr, ONE_TILE: tl.constexpr, LINES: tl.constexpr,
    LENGTH: tl.constexpr,
):  # fmt: skip
    """Quantise lines, rows or (`TRANSPOSED`) columns, with one scale each; `LINES` of them a program."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    inside = (line < lines)[:, None]
    along = tl.arange(0, LENGTH)
    start = matrix + line[:, None] * stride_line
    if ONE_TILE:
        mask = inside & (along < length)[None, :]
        tile = tl.load(start + along[None, :].to(tl.int64) * stride_along, mask=mask, other=0.0).to(
            tl.float32
        )
        amax = max_magnitude(tile, 1)
    else:
        amax = tl.zeros((LINES,), tl.float32)
        for first in range(0, length, LENGTH):
            place = (first + along)[None, :].to(tl.int64)
            part = tl.load(start + place * stride_along, mask=inside & (place < length), other=0.0)
            amax = tl.maximum(amax, max_magnitude(part.to(tl.float32), 1), propagate_nan=tl.PropagateNan.ALL)
    scale = scale_of(amax, LARGEST, POWER_OF_TWO)
    tl.store(scales + line, scale, mask=line < lines)
    tl.store(amaxes + line, amax, mask=line < lines)
    for first in range(0, length, LENGTH):
        place = (first + along)[None, :].to(tl.int64)
        mask = inside & (place < length)
        if not ONE_TILE:
            tile = tl.load(start + place * stride_along, mask=mask, other=0.0).to(tl.float32)
        if TRANSPOSED:
            random = _random(seed, place, line[:, None], columns, STOCHASTIC)
        else:
            random = _random(seed, line[:, None], place, columns, STOCHASTIC)
        rounded = round_to(
            tl.div_rn(tile, scale[:, None] + tl.zeros_like(tile)), random, KIND, STOCHASTIC, HARDWARE
        )
        tl.store(values + line[:, None] * out_line + place * out_along, rounded, mask=mask)


@triton.jit(do_not_specialize=("seed",))
def quantize_tiles(
    matrix, values, scales, amaxes, rows, columns, stride_row, stride_column, blocks, seed,
    LARGEST: tl.constexpr, KIND: tl.constexpr, POWER_OF_TWO: tl.constexpr, STOCHASTIC: tl.constexpr,
    HARDWARE: tl.constexpr, GRANULARITY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STRIP: tl.constexpr,
):  # fmt: skip
    """Quantise a tile of `ROWS` × 128 by groups or as one block, or with the scale given for the tensor."""
    # On one axis of the grid: the others end at 65 535.
    tile_row = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    row = tile_row * ROWS + tl.arange(0, ROWS)
    column = block.to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    place = row[:, None] * stride_row + column[None, :] * stride_column
    tile = tl.load(matrix + place, mask=mask, other=0.0).to(tl.float32)
    if GRANULARITY == "tensor":
        scale = tl.load(scales) + tl.zeros((ROWS, 1), tl.float32)
    elif GRANULARITY == "group":
        amax = max_magnitude(tile, 1)
        line = scale_of(amax, LARGEST, POWER_OF_TWO)
        tl.store(scales + row * blocks + block, line, mask=row < rows)
        tl.store(amaxes + row * blocks + block, amax, mask=row < rows)
        scale = line[:, None]
    else:
        amax = max_magnitude(tl.reshape(tile, (1, ROWS * COLUMNS)), 1)
        line = scale_of(amax, LARGEST, POWER_OF_TWO)
        spot = tile_row * blocks + block + tl.arange(0, 1)
        tl.store(scales + spot, line)
        tl.store(amaxes + spot, amax)
        scale = line[:, None]
    if STRIP == ROWS:
        random = _random(seed, row[:, None], column[None, :], columns, STOCHASTIC)
        rounded = round_to(tl.div_rn(tile, scale + tl.zeros_like(tile)), random, KIND, STOCHASTIC, HARDWARE)
        tl.store(values + row[:, None] * columns + column[None, :], rounded, mask=mask)
    else:
        # Read again, from the cache, a strip at a time: the draws of a whole block do not fit in registers.
        for first in range(0, ROWS, STRIP):
            part = tile_row * ROWS + first + tl.arange(0, STRIP)
            inside = (part < rows)[:, None] & (column < columns)[None, :]
            at = matrix + part[:, None] * stride_row + column[None, :] * stride_column
            strip = tl.load(at, mask=inside, other=0.0).to(tl.float32)
            random = _random(seed, part[:, None], column[None, :], columns, STOCHASTIC)
            scaled = tl.div_rn(strip, scale + tl.zeros_like(strip))
            rounded = round_to(scaled, random, KIND, STOCHASTIC, HARDWARE)
            tl.store(values + part[:, None] * columns + column[None, :], rounded, mask=inside)


@on_its_device
def launch(
    matrix: Tensor, dtype: torch.dtype, granularity: str, power_of_two: bool, seed: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `autoprec.kernels.ops.quantize.reference` by Triton."""
    rows, columns = matrix.shape
    values = matrix.new_empty(matrix.shape, dtype=dtype)
    shape = scale_shape(matrix.shape, granularity)
    if matrix.numel() == 0 or granularity == "tensor":
        amax = amax_of(matrix, granularity)
        scale = scale_from(amax, dtype, power_of_two)
        if matrix.numel() == 0:
            return values, scale, amax
    else:
        amax = matrix.new_empty(shape, dtype=torch.float32)
        scale = torch.empty_like(amax)
    hardware = hardware_fp8(matrix.device)
    target = values if hardware and seed is None else raw(values)
    common = {
        "LARGEST": largest_of(dtype),
        "KIND": KINDS[dtype],
        "POWER_OF_TWO": power_of_two,
        "STOCHASTIC": seed is not None,
        "HARDWARE": hardware,
    }
    if granularity in ("row", "column"):
        across = granularity == "column"
        lines, length = (columns, rows) if across else (rows, columns)
        steps = matrix.stride()[::-1] if across else matrix.stride()
        if steps[0] == 1 < steps[1]:  # memory runs across the lines: read a piece of many at once
            held, many = min(power_above(length), TILE // 32), 32
        else:
            held = min(power_above(length), LONGEST_TILE)
            many = max(1, min(TILE // held, 32))
        quantize_lines[(-(-lines // many),)](
            matrix, target, scale, amax, lines, length, *steps,
            *((1, columns) if across else (columns, 1)), columns, seed or 0, **common, TRANSPOSED=across,
            ONE_TILE=length <= held, LINES=many, LENGTH=held, num_warps=8 if held == LONGEST_TILE else 4,
        )  # fmt: skip
    else:
        tall = BLOCK_SIZE if granularity == "block" else TILE // BLOCK_SIZE
        blocks = -(-columns // BLOCK_SIZE)
        quantize_tiles[(-(-rows // tall) * blocks,)](
            matrix, target, scale, amax, rows, columns, *matrix.stride(), blocks, seed or 0, **common,
            GRANULARITY=granularity, ROWS=tall, COLUMNS=BLOCK_SIZE,
            STRIP=_strip(granularity, tall, seed is not None), num_warps=_WARPS[granularity],
        )  # fmt: skip
    return values, scale, amax


_UNIT = ("stride_along", "out_along", "stride_column")


def _cases() -> tuple[Case, ...]:
    lines = dict.fromkeys(
        ("lines", "length", "stride_line", "stride_along", "out_line", "out_along", "columns", "seed"), "i32"
    )
    tiles = dict.fromkeys(("rows", "columns", "stride_row", "stride_column", "blocks", "seed"), "i32")
    cases = []
    for kind, out, hardware in (("int8", "*i8", True), ("e4m3", "*fp8e4nv", True), ("e4m3", "*u8", False)):
        pointers = {"matrix": "*bf16", "values": out, "scales": "*fp32", "amaxes": "*fp32"}
        common = {
            "LARGEST": largest_of({name: dtype for dtype, name in KINDS.items()}[kind]),
            "KIND": kind, "POWER_OF_TWO": False, "STOCHASTIC": not hardware, "HARDWARE": hardware,
        }  # fmt: skip
        name = f"quantize.{kind}{'' if hardware else '_stochastic'}"
        operands = ("float8_e4m3fn",) if out == "*fp8e4nv" else ()
        row = common | {"TRANSPOSED": False, "ONE_TILE": True, "LINES": 1, "LENGTH": 4096}
        cases.append(Case(f"{name}.row", quantize_lines, pointers | lines, row, operands, unit=_UNIT))
        for granularity, tall in (("group", TILE // BLOCK_SIZE), ("block", BLOCK_SIZE)):
            tile = common | {
                "GRANULARITY": granularity, "ROWS": tall, "COLUMNS": BLOCK_SIZE,
                "STRIP": _strip(granularity, tall, not hardware),
            }  # fmt: skip
            signature = pointers | tiles
            cases.append(
                Case(
                    f"{name}.{granularity}",
                    quantize_tiles,
                    signature,
                    tile,
                    operands,
                    warps=_WARPS[granularity],
                    unit=_UNIT,
                )
            )
    return tuple(cases)


CASES = _cases()
