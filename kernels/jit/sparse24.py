"""`sparse24` in Triton: weights are moved as bits, for no arithmetic is done on them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from autoprec.kernels.jit.launch import Case, on_its_device, power_above
from autoprec.kernels.ops.sparse24 import BITS

_FOURS = 1024
"""Fours of columns a program."""


@triton.jit
def pack_tiles(
    weight, values, indices, rows, fours, stride_row, stride_column,
    MAGNITUDE: tl.constexpr, ROWS: tl.constexpr, FOURS: tl.constexpr,
):  # fmt: skip
    """Prune and pack `ROWS` × `FOURS` fours of columns."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    four = tl.program_id(1).to(tl.int64) * FOURS
    column = (four * 4 + tl.arange(0, 4 * FOURS))[None, :]
    mask = (row < rows) & (column < fours * 4)
    tile = tl.load(weight + row * stride_row + column * stride_column, mask=mask, other=0)
    even, odd = tl.split(tl.reshape(tile, (ROWS, FOURS, 2, 2)))
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    s0, s1, s2, s3 = w0 & MAGNITUDE, w1 & MAGNITUDE, w2 & MAGNITUDE, w3 & MAGNITUDE
    # One is kept where fewer than 2 come before it: earlier ones as large as it, and later ones larger.
    k0 = (s1 > s0).to(tl.int32) + (s2 > s0).to(tl.int32) + (s3 > s0).to(tl.int32) < 2
    k1 = (s0 >= s1).to(tl.int32) + (s2 > s1).to(tl.int32) + (s3 > s1).to(tl.int32) < 2
    k2 = (s0 >= s2).to(tl.int32) + (s1 >= s2).to(tl.int32) + (s3 > s2).to(tl.int32) < 2
    # The first kept is 0, 1 or 2; the last kept is 3, 2 or 1.
    k3 = (s0 >= s3).to(tl.int32) + (s1 >= s3).to(tl.int32) + (s2 >= s3).to(tl.int32) < 2
    first = tl.where(k0, 0, tl.where(k1, 1, 2))
    last = tl.where(k3, 3, tl.where(k2, 2, 1))
    low = tl.where(k0, w0, tl.where(k1, w1, w2))
    high = tl.where(k3, w3, tl.where(k2, w2, w1))
    half = (four * 2 + tl.arange(0, 2 * FOURS))[None, :]
    kept = tl.reshape(tl.join(low, high), (ROWS, 2 * FOURS))
    tl.store(values + row * (fours * 2) + half, kept, mask=(row < rows) & (half < fours * 2))
    inside = (four + tl.arange(0, FOURS))[None, :] < fours
    nibble = tl.where(inside, first | (last << 2), 0)
    lower, upper = tl.split(tl.reshape(nibble, (ROWS, FOURS // 2, 2)))
    byte = (four // 2 + tl.arange(0, FOURS // 2))[None, :]
    stride = (fours + 1) // 2
    packed = (lower | (upper << 4)).to(tl.uint8)
    tl.store(indices + row * stride + byte, packed, mask=(row < rows) & (byte < stride))


@triton.jit
def unpack_tiles(values, indices, weight, rows, fours, ROWS: tl.constexpr, FOURS: tl.constexpr):
    """Unpack `ROWS` × `FOURS` fours of columns."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    four = tl.program_id(1).to(tl.int64) * FOURS
    half = (four * 2 + tl.arange(0, 2 * FOURS))[None, :]
    kept = tl.load(values + row * (fours * 2) + half, mask=(row < rows) & (half < fours * 2), other=0)
    low, high = tl.split(tl.reshape(kept, (ROWS, FOURS, 2)))
    byte = (four // 2 + tl.arange(0, FOURS // 2))[None, :]
    stride = (fours + 1) // 2
    packed = tl.load(indices + row * stride + byte, mask=(row < rows) & (byte < stride), other=0)
    nibble = tl.reshape(tl.join(packed & 15, packed >> 4), (ROWS, FOURS))
    first = nibble & 3
    last = nibble >> 2
    nothing = tl.zeros_like(low)
    w0 = tl.where(first == 0, low, nothing)
    w1 = tl.where(first == 1, low, tl.where(last == 1, high, nothing))
    w2 = tl.where(first == 2, low, tl.where(last == 2, high, nothing))
    w3 = tl.where(last == 3, high, nothing)
    tile = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (ROWS, 4 * FOURS))
    column = (four * 4 + tl.arange(0, 4 * FOURS))[None, :]
    tl.store(weight + row * (fours * 4) + column, tile, mask=(row < rows) & (column < fours * 4))


@on_its_device
def launch(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `autoprec.kernels.ops.sparse24.reference` by Triton."""
    rows, columns = weight.shape
    values = weight.new_empty((rows, columns // 2))
    indices = weight.new_empty((rows, -(-columns // 8)), dtype=torch.uint8)
    if weight.numel():
        held = BITS[weight.dtype]
        grid, sizes = _tiles(rows, columns // 4)
        pack_tiles[grid](
            weight.view(held), values.view(held), indices, rows, columns // 4, *weight.stride(),
            MAGNITUDE=torch.iinfo(held).max, **sizes, num_warps=4,
        )  # fmt: skip
    return values, indices


@on_its_device
def launch_unpack(values: Tensor, indices: Tensor) -> Tensor:
    """Compute `autoprec.kernels.ops.sparse24.reference_unpack` by Triton."""
    rows, half = values.shape
    weight = values.new_empty((rows, half * 2))
    if weight.numel():
        held = BITS[values.dtype]
        grid, sizes = _tiles(rows, half // 2)
        unpack_tiles[grid](
            values.view(held), indices, weight.view(held), rows, half // 2, **sizes, num_warps=4
        )
    return weight


def _tiles(rows: int, fours: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Return the grid and how much of the matrix a program does."""
    wide = max(2, min(power_above(fours), _FOURS))
    tall = _FOURS // wide
    return (-(-rows // tall), -(-fours // wide)), {"ROWS": tall, "FOURS": wide}


def _cases() -> tuple[Case, ...]:
    sizes = {"ROWS": 1, "FOURS": _FOURS}
    counts = dict.fromkeys(("rows", "fours", "stride_row", "stride_column"), "i32")
    cases = []
    for dtype, held in ((torch.float32, torch.int32), (torch.bfloat16, torch.int16)):
        name, bits = str(dtype).removeprefix("torch."), torch.iinfo(held).bits
        tensors = {"weight": f"*i{bits}", "values": f"*i{bits}", "indices": "*u8"}
        pack = sizes | {"MAGNITUDE": torch.iinfo(held).max}
        cases += [
            Case(f"sparse24.pack_{name}", pack_tiles, tensors | counts, pack, unit=("stride_column",)),
            Case(f"sparse24.unpack_{name}", unpack_tiles, tensors | counts, sizes),
        ]
    return tuple(cases)


CASES = _cases()
