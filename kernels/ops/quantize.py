"""`quantize`: a matrix to fp8 or int8 with scales for the tensor, rows, columns or blocks.

The scale of a region is its largest magnitude over the type's largest number (127 for int8), at least
1.18e-38, so that a region of zeros stays zero. NaN in a region makes its scale NaN, and so all that is
computed with it; `amax` shows it to whoever watches. Values saturate.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from autoprec.kernels.formats import BLOCK_SIZE
from autoprec.kernels.ops.operator import define_operator, without_gradient

KINDS = {torch.int8: "int8", torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
"""Number types to quantise to, by the name that the kernels have for them."""
GRANULARITIES = ("tensor", "row", "column", "group", "block")
"""What shares a scale: everything, a row, a column, 128 elements of a row, or 128 × 128."""
_TINY = torch.finfo(torch.float32).tiny


class Quantized(NamedTuple):
    """A quantised matrix.

    Attributes:
        values: int8 or fp8, [rows, columns].
        scale: float32; `values * scale` is the matrix. [1, 1] for a tensor, [rows, 1] for rows, [1, columns]
            for columns, [rows, ceil(columns / 128)] for groups, [ceil(rows / 128), ceil(columns / 128)] for
            blocks.
        amax: Largest magnitude of each region, float32 of the scale's shape; NaN where there is one. `None`
            where it was not kept.
    """

    values: Tensor
    scale: Tensor
    amax: Tensor | None = None

    def dequantize(self) -> Tensor:
        """Return the matrix in float32."""
        return self.values.float() * spread(self.scale, self.values.shape)


def quantize(
    matrix: Tensor,
    dtype: torch.dtype,
    granularity: str = "row",
    *,
    power_of_two: bool = False,
    seed: int | None = None,
) -> Quantized:
    """Quantise a matrix [rows, columns] of float32, bfloat16 or float16, of any strides.

    Args:
        matrix: What to quantise, on a CPU or a CUDA device.
        dtype: `torch.int8`, `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        granularity: One of `GRANULARITIES`.
        power_of_two: Raise scales to powers of two, which change no mantissa.
        seed: Round stochastically, so that the mean of many roundings is the number; to the nearest, ties to
            even, where `None`. The draws of a CPU and of a GPU differ.

    Raises:
        ValueError: The shape, a dtype or the granularity is none of these.
    """
    _check(matrix, dtype, granularity)
    return Quantized(*torch.ops.autoprec.quantize(matrix, dtype, granularity, power_of_two, seed))


def spread(scale: Tensor, shape: torch.Size) -> Tensor:
    """Expand the scales of regions to a matrix of `shape`."""
    rows, columns = shape
    for axis, size in ((0, rows), (1, columns)):
        if scale.shape[axis] not in (1, size):
            scale = scale.repeat_interleave(BLOCK_SIZE, axis).narrow(axis, 0, size)
    return scale.expand(rows, columns)


def scale_shape(shape: torch.Size, granularity: str) -> tuple[int, int]:
    """Return the shape of the scales of a matrix of `shape`."""
    rows, columns = shape
    blocks = -(-columns // BLOCK_SIZE)
    return {
        "tensor": (1, 1),
        "row": (rows, 1),
        "column": (1, columns),
        "group": (rows, blocks),
        "block": (-(-rows // BLOCK_SIZE), blocks),
    }[granularity]


def largest_of(dtype: torch.dtype) -> float:
    """Return the largest number of a type to quantise to; 127 for int8, so that it is symmetric."""
    return 127.0 if dtype is torch.int8 else torch.finfo(dtype).max


def amax_of(matrix: Tensor, granularity: str) -> Tensor:
    """Return the largest magnitude of each region in float32; NaN where there is a NaN."""
    sizes = scale_shape(matrix.shape, granularity)
    if matrix.numel() == 0:
        return matrix.new_zeros(sizes, dtype=torch.float32)
    if granularity == "tensor":
        low, high = torch.aminmax(matrix)  # reads it once and writes nothing, unlike a matrix of magnitudes
        return torch.maximum(-low, high).float().view(sizes)
    magnitudes = matrix.float().abs()
    if granularity in ("group", "block"):
        tall = BLOCK_SIZE if granularity == "block" else 1
        magnitudes = F.pad(magnitudes, (0, -matrix.shape[1] % BLOCK_SIZE, 0, -matrix.shape[0] % tall))
    # [regions down, rows of one, regions across, columns of one]
    tiles = magnitudes.reshape(sizes[0], magnitudes.shape[0] // sizes[0], sizes[1], -1)
    return tiles.amax(dim=(1, 3))


def scale_from(amax: Tensor, dtype: torch.dtype, power_of_two: bool) -> Tensor:
    """Return the scales for the largest magnitudes of regions."""
    # By a tensor: by a number, torch multiplies with the reciprocal on CUDA, which rounds otherwise.
    scale = (amax / torch.full_like(amax, largest_of(dtype))).clamp_min(_TINY)
    if power_of_two:
        raised = ((scale.view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(torch.float32)
        scale = torch.where(scale.isnan(), scale, raised)
    return scale


def reference(
    matrix: Tensor, dtype: torch.dtype, granularity: str, power_of_two: bool, seed: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `quantize` in plain torch."""
    amax = amax_of(matrix, granularity)
    scale = scale_from(amax, dtype, power_of_two)
    scaled = matrix.float() / spread(scale, matrix.shape)
    limit = largest_of(dtype)
    scaled = scaled.clamp(-limit, limit)
    if seed is not None:
        generator = torch.Generator(matrix.device).manual_seed(seed)
        scaled = _dithered(scaled, dtype, torch.rand(scaled.shape, generator=generator, device=matrix.device))
    if dtype is torch.int8:
        scaled = scaled.round().nan_to_num(0.0)
    return scaled.to(dtype).contiguous(), scale, amax


def _dithered(scaled: Tensor, dtype: torch.dtype, uniform: Tensor) -> Tensor:
    """Move each number to one of its two neighbours in a type, the nearer the likelier."""
    if dtype is torch.int8:
        return (scaled + uniform).floor()
    mantissa, smallest = (3, 2.0**-6) if dtype is torch.float8_e4m3fn else (2, 2.0**-14)
    size = scaled.abs()
    _, exponent = torch.frexp(size.clamp_min(smallest))
    step = torch.ldexp(torch.ones_like(size), exponent - 1 - mantissa)
    return torch.copysign(((size / step) + uniform).floor() * step, scaled)


def _check(matrix: Tensor, dtype: torch.dtype, granularity: str) -> None:
    if matrix.dim() != 2:
        raise ValueError(f"matrix must be [rows, columns], got {tuple(matrix.shape)}")
    if matrix.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"matrix must be float32, bfloat16 or float16, got {matrix.dtype}")
    if dtype not in KINDS:
        raise ValueError(f"dtype must be one of {', '.join(map(str, KINDS))}, got {dtype}")
    if granularity not in GRANULARITIES:
        raise ValueError(f"granularity must be one of {', '.join(GRANULARITIES)}, got {granularity!r}")


def _fake(
    matrix: Tensor, dtype: torch.dtype, granularity: str, power_of_two: bool, seed: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    scales = scale_shape(matrix.shape, granularity)
    return (
        matrix.new_empty(matrix.shape, dtype=dtype),
        matrix.new_empty(scales, dtype=torch.float32),
        matrix.new_empty(scales, dtype=torch.float32),
    )


define_operator(
    "quantize",
    "(Tensor matrix, ScalarType dtype, str granularity, bool power_of_two, int? seed)"
    " -> (Tensor, Tensor, Tensor)",
    reference,
    _fake,
)
without_gradient("quantize")
