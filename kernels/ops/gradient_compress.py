"""`gradient_compress`: a flat gradient to int8 blocks for sending, what is lost kept for the next step.

Error feedback (Seide et al., 2014; Karimireddy et al., 2019): what rounding loses is kept in a residual and
added to the next gradient, so that nothing is lost for good. 512 values share a float32 scale: 3.97 times
fewer bytes than float32. A block with NaN or inf decompresses to NaN and leaves its residual as it was, so
that a step which is skipped for it loses nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from autoprec.kernels.ops.operator import define_operator
from autoprec.kernels.ops.quantize import largest_of, scale_from

BLOCK = 512
"""Values that share a scale."""
_FLOATS = (torch.float32, torch.bfloat16)


class Compressed(NamedTuple):
    """What is sent of a gradient.

    Attributes:
        values: int8 [elements].
        scale: float32 [ceil(elements / 512)].
    """

    values: Tensor
    scale: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes to send."""
        return self.values.nbytes + self.scale.nbytes


def gradient_compress(gradient: Tensor, residual: Tensor) -> Compressed:
    """Compress `gradient + residual` and leave in `residual` what was lost.

    Args:
        gradient: float32 or bfloat16 [elements], contiguous.
        residual: float32 [elements], contiguous; zeros before the first step. Changed in place.

    Raises:
        ValueError: A shape, a dtype or a device is none of these.
    """
    _check_flat("gradient", gradient, _FLOATS, gradient)
    _check_flat("residual", residual, (torch.float32,), gradient)
    return Compressed(*torch.ops.autoprec.gradient_compress(gradient, residual))


def gradient_decompress(
    compressed: Compressed, dtype: torch.dtype = torch.float32, *, into: Tensor | None = None
) -> Tensor:
    """Return what was compressed, or add it to a tensor, as the sum over ranks needs.

    Args:
        compressed: What `gradient_compress` made.
        dtype: `torch.float32` or `torch.bfloat16`; of what is returned where `into` is `None`.
        into: float32 or bfloat16 [elements], contiguous. Changed in place and returned.

    Raises:
        ValueError: A shape, a dtype or a device is none of these.
    """
    values, scale = compressed
    _check_flat("values", values, (torch.int8,), values)
    if scale.shape != (blocks_of(values),) or scale.dtype is not torch.float32 or not scale.is_contiguous():
        raise ValueError(
            f"scale must be float32 [{blocks_of(values)}] and contiguous, got {scale.dtype} "
            f"{tuple(scale.shape)} of strides {scale.stride()}"
        )
    if scale.device != values.device:
        raise ValueError(f"scale must be on {values.device} as values, got {scale.device}")
    if dtype not in _FLOATS:
        raise ValueError(f"dtype must be float32 or bfloat16, got {dtype}")
    out = torch.empty_like(values, dtype=dtype) if into is None else into
    _check_flat("into", out, _FLOATS, values)
    torch.ops.autoprec.gradient_decompress(values, scale, out, into is not None)
    return out


def blocks_of(values: Tensor) -> int:
    """Return how many scales the values have."""
    return -(-values.numel() // BLOCK)


def reference(gradient: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `gradient_compress` in plain torch."""
    total = gradient.float() + residual
    count, blocks = total.numel(), blocks_of(total)
    tiles = F.pad(total, (0, -count % BLOCK)).view(blocks, BLOCK)
    scale = scale_from(tiles.abs().amax(1), torch.int8, False) if blocks else total.new_empty(0)
    largest = largest_of(torch.int8)
    values = (tiles / scale[:, None]).round().clamp(-largest, largest).nan_to_num(0.0)
    lost = (tiles - values * scale[:, None]).view(-1)[:count]
    sound = scale.isfinite().repeat_interleave(BLOCK)[:count]
    residual.copy_(torch.where(sound, lost, residual))
    return values.to(torch.int8).view(-1)[:count].contiguous(), scale


def reference_decompress(values: Tensor, scale: Tensor, out: Tensor, add: bool) -> None:
    """Compute `gradient_decompress` in plain torch, over what is in `out` or added to it."""
    numbers = values.float() * scale.repeat_interleave(BLOCK)[: values.numel()]
    out.copy_(out.float() + numbers if add else numbers)


def _check_flat(name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], like: Tensor) -> None:
    if tensor.dim() != 1 or not tensor.is_contiguous() or tensor.numel() != like.numel():
        wanted = like.numel() if tensor is not like else "elements"
        raise ValueError(
            f"{name} must be [{wanted}] and contiguous,"
            f" got {tuple(tensor.shape)} of strides {tensor.stride()}"
        )
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(f"{name} must be {wanted}, got {tensor.dtype}")
    if tensor.device != like.device:
        raise ValueError(f"{name} must be on {like.device}, got {tensor.device}")


def _fake(gradient: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    return (
        torch.empty_like(gradient, dtype=torch.int8),
        gradient.new_empty(blocks_of(gradient), dtype=torch.float32),
    )


def _fake_decompress(values: Tensor, scale: Tensor, out: Tensor, add: bool) -> None:
    """There is nothing to make."""


define_operator(
    "gradient_compress",
    "(Tensor gradient, Tensor(a!) residual) -> (Tensor, Tensor)",
    reference,
    _fake,
)
define_operator(
    "gradient_decompress",
    "(Tensor values, Tensor scale, Tensor(a!) out, bool add) -> ()",
    reference_decompress,
    _fake_decompress,
    module="gradient_compress",
    launcher="launch_decompress",
)
