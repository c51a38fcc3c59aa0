"""Quantisers in plain torch: what each format does to weights and activations, and how to undo it.

The reference, the conversions and the emulated formats share these, so that they agree bit by bit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from autoprec.errors import ConversionError
from autoprec.kernels.formats import BLOCK_SIZE, GROUP_SIZE

SMALLEST_DYNAMIC_SCALE = 6.1e-5
"""Floor of the activation scale of `int8_dynamic`, as in `ChooseQuantizationParams` of torch and FBGEMM."""
_TINY = torch.finfo(torch.float32).tiny


class QuantizedWeight(NamedTuple):
    """Symmetric int8 values and one scale a channel.

    Attributes:
        values: int8, of the weight's shape, in [-127, 127].
        scale: Of shape [channels]; `values * scale` is the weight.
    """

    values: Tensor
    scale: Tensor

    def dequantize(self) -> Tensor:
        """Return the weight in fp32."""
        return self.values.float() * per_channel(self.scale.float(), self.values.dim())


class GroupedWeight(NamedTuple):
    """4-bit values in groups along the input dimension.

    Attributes:
        values: int32 of shape [channels, inputs], in [0, 15].
        scale: bfloat16 of shape [channels, groups].
        zero: bfloat16 of shape [channels, groups], the weight that the value 8 stands for.
    """

    values: Tensor
    scale: Tensor
    zero: Tensor

    def dequantize(self) -> Tensor:
        """Return the weight in fp32: `(value - 8) * scale + zero`, as `_weight_int4pack_mm` computes it."""
        rows, inputs = self.values.shape
        padded = F.pad(self.values.float(), (0, -inputs % GROUP_SIZE))
        groups = padded.view(rows, self.scale.shape[1], GROUP_SIZE)
        return groups.sub_(8).mul_(self.scale[..., None]).add_(self.zero[..., None]).flatten(1)[:, :inputs]


def per_channel(scale: Tensor, dims: int) -> Tensor:
    """View a scale of shape [channels] so that it broadcasts over a weight of `dims` dimensions."""
    return scale.view(-1, *[1] * (dims - 1))


def int8_channel(weight: Tensor, scale_dtype: torch.dtype = torch.float32) -> QuantizedWeight:
    """Quantise symmetrically to int8 with one scale a channel (dimension 0).

    The values are rounded against the scale as `scale_dtype` holds it. A channel of zeros has zeros for
    values and a positive scale.

    Raises:
        ConversionError: The weight holds NaN or inf.
    """
    require_finite(weight)
    flat = weight.float().flatten(1)
    scale = (flat.abs().amax(1) / 127).clamp_min(_TINY).to(scale_dtype)
    values = (weight.float() / per_channel(scale.float(), weight.dim())).round().clamp(-127, 127)
    # The kernels take row-major values whatever the strides of the weight.
    return QuantizedWeight(values.to(torch.int8).contiguous(), scale)


def int4_group(weight: Tensor) -> GroupedWeight:
    """Quantise a matrix [channels, inputs] to 4 bits between the extremes of each group of 64 inputs.

    The last group is shorter where the inputs are no multiple of 64.

    Raises:
        ConversionError: The weight holds NaN or inf.
    """
    require_finite(weight)
    channels, inputs = weight.shape
    missing = -inputs % GROUP_SIZE
    # Repeating the last column leaves the extremes of the last group as they are.
    padded = F.pad(weight.float()[None], (0, missing), mode="replicate")[0] if missing else weight.float()
    groups = padded.reshape(channels, -1, GROUP_SIZE)
    low, high = groups.aminmax(dim=-1)
    scale = ((high - low) / 15).clamp_min(_TINY).bfloat16()
    zero = (low + 8 * scale.float()).bfloat16()
    values = ((groups - zero.float()[..., None]) / scale.float()[..., None] + 8).round().clamp(0, 15)
    return GroupedWeight(values.to(torch.int32).view(channels, -1)[:, :inputs].contiguous(), scale, zero)


class AffineWeight(NamedTuple):
    """4-bit values in groups along the input dimension, with whole zero points.

    Attributes:
        values: int32 of shape [channels, inputs], in [0, 15].
        scale: float32 of shape [channels, groups].
        zero: int32 of shape [channels, groups], in [0, 15], the value that stands for 0.
    """

    values: Tensor
    scale: Tensor
    zero: Tensor

    def dequantize(self) -> Tensor:
        """Return the weight in fp32: `(value - zero) * scale`, as ONNX Runtime's `MatMulNBits` has it."""
        rows, inputs = self.values.shape
        padded = F.pad(self.values, (0, -inputs % GROUP_SIZE))
        groups = padded.view(rows, self.scale.shape[1], GROUP_SIZE) - self.zero[..., None]
        return (groups * self.scale[..., None]).flatten(1)[:, :inputs]


def int4_affine(weight: Tensor) -> AffineWeight:
    """Quantise a matrix [channels, inputs] to 4 bits, 0 exactly, between the extremes of 64 inputs each.

    Raises:
        ConversionError: The weight holds NaN or inf.
    """
    require_finite(weight)
    channels, inputs = weight.shape
    groups = F.pad(weight.float(), (0, -inputs % GROUP_SIZE)).reshape(channels, -1, GROUP_SIZE)
    low, high = groups.aminmax(dim=-1)
    low, high = low.clamp_max(0), high.clamp_min(0)
    scale = ((high - low) / 15).clamp_min(_TINY)
    zero = (-low / scale).round().clamp(0, 15)
    values = ((groups / scale[..., None]).round() + zero[..., None]).clamp(0, 15)
    return AffineWeight(values.int().view(channels, -1)[:, :inputs].contiguous(), scale, zero.int())


def pack_nibbles(values: Tensor) -> Tensor:
    """Pack values in [0, 15] of shape [rows, columns] two to a byte, low half first; pads odd rows."""
    values = F.pad(values, (0, values.shape[1] % 2)).to(torch.uint8)
    return values[:, ::2] | (values[:, 1::2] << 4)


def unpack_nibbles(packed: Tensor, columns: int) -> Tensor:
    """Undo `pack_nibbles`; returns uint8 of shape [..., columns]."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)[..., :columns]


def affine_parameters(low: float, high: float, levels: int, floor: float = _TINY) -> tuple[float, int]:
    """Return scale and zero point that map [low, high], widened to hold 0, to the integers 0 … levels.

    Args:
        low: Smallest value.
        high: Largest value.
        levels: Largest integer: 255 for 8 bits, 127 for 7.
        floor: Smallest scale.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    fitted = max((high - low) / levels, _TINY)
    return max(fitted, floor), min(max(round(-low / fitted), 0), levels)


def affine(inputs: Tensor, scale: float, zero_point: int, levels: int) -> Tensor:
    """Quantise to uint8 in 0 … levels; NaN becomes an unspecified value."""
    return inputs.div(scale).round_().add_(zero_point).clamp_(0, levels).to(torch.uint8)


def fake_affine(inputs: Tensor, scale: float, zero_point: int, levels: int) -> Tensor:
    """Quantise and dequantise in fp32; NaN stays NaN."""
    return ((inputs.float() / scale).round() + zero_point).clamp(0, levels).sub(zero_point) * scale


def fake_dynamic(inputs: Tensor, levels: int) -> Tensor:
    """Quantise and dequantise with one scale for the tensor; all NaN where an input is NaN or inf."""
    low, high = (bound.item() for bound in torch.aminmax(inputs.float()))
    if not (math.isfinite(low) and math.isfinite(high)):
        return torch.full_like(inputs, math.nan, dtype=torch.float32)
    return fake_affine(inputs, *affine_parameters(low, high, levels, SMALLEST_DYNAMIC_SCALE), levels)


def row_scale(rows: Tensor) -> Tensor:
    """Return the symmetric int8 scale of each row, of shape [rows, 1]; NaN for a row with NaN."""
    return rows.abs().amax(-1, keepdim=True).div_(127).clamp_min_(_TINY)


def fake_row(inputs: Tensor) -> Tensor:
    """Quantise and dequantise symmetrically, one scale a row; a row with NaN or inf becomes NaN."""
    scale = row_scale(inputs.float())
    return (inputs.float() / scale).round() * scale


def fake_group(inputs: Tensor) -> Tensor:
    """Quantise and dequantise symmetrically, one scale for each `GROUP_SIZE` elements of a row."""
    width = inputs.shape[-1]
    padded = F.pad(inputs.float(), (0, -width % GROUP_SIZE))
    groups = padded.view(*padded.shape[:-1], -1, GROUP_SIZE)
    return fake_row(groups).flatten(-2)[..., :width]


def fake_fp8(values: Tensor, dtype: torch.dtype, scale: Tensor) -> Tensor:
    """Scale, round to fp8 (saturating, NaN kept) and scale back, in fp32."""
    largest = torch.finfo(dtype).max
    return (values.float() / scale).clamp(-largest, largest).to(dtype).float() * scale


def fp8_scale(largest: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the scale that maps magnitudes up to `largest` onto the range of an fp8 type."""
    return (largest / torch.finfo(dtype).max).clamp_min(_TINY)


def fp8_row_scale(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return one fp8 scale for each row (of activations) or channel (of weights), of shape [rows, 1]."""
    return fp8_scale(rows.float().abs().amax(-1, keepdim=True), dtype)


def fp8_block_scale(matrix: Tensor, block_rows: int) -> Tensor:
    """Return fp8 e4m3 scales for blocks of `block_rows` × 128, spread to the shape of `matrix`."""
    rows, columns = matrix.shape
    padded = F.pad(matrix.float().abs(), (0, -columns % BLOCK_SIZE, 0, -rows % block_rows))
    tiles = padded.view(padded.shape[0] // block_rows, block_rows, -1, BLOCK_SIZE)
    scale = fp8_scale(tiles.amax(dim=(1, 3)), torch.float8_e4m3fn)
    spread = scale.repeat_interleave(block_rows, 0).repeat_interleave(BLOCK_SIZE, 1)
    return spread[:rows, :columns]


def require_fp16_range(weight: Tensor) -> None:
    """Refuse weights that fp16 cannot hold.

    Raises:
        ConversionError: A finite weight is larger than 65504 in magnitude.
    """
    largest = torch.where(weight.isfinite(), weight.abs(), 0).amax().item()
    if largest > torch.finfo(torch.float16).max:
        raise ConversionError(
            f"a weight of magnitude {largest:g} is beyond fp16's 65504; keep this module in bf16 or fp32"
        )


def require_finite(weight: Tensor) -> None:
    """Refuse weights with NaN or inf, which integers and FBGEMM's fp16 cannot hold.

    Raises:
        ConversionError: There is one.
    """
    if not bool(weight.isfinite().all()):
        raise ConversionError("the weight holds NaN or inf, which this kernel would lose; leave it in fp32")
