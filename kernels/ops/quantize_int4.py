"""`quantize_int4`: a weight to 4 bits between the extremes of each group of 64 inputs, packed.

The numbers are those of `autoprec.kernels.quantize.int4_group` and `pack_nibbles`, bit by bit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from autoprec.kernels.formats import GROUP_SIZE
from autoprec.kernels.ops.operator import define_operator
from autoprec.kernels.quantize import (
    GroupedWeight,
    int4_group,
    pack_nibbles,
    require_finite,
    unpack_nibbles,
)


class PackedInt4(NamedTuple):
    """A weight [channels, inputs] in 4 bits; `(value - 8) * scale + zero` is the weight.

    Attributes:
        packed: uint8 [channels, ceil(inputs / 2)], the earlier of two inputs in the lower half.
        scale: bfloat16 [channels, ceil(inputs / 64)].
        zero: bfloat16 of the same shape, the weight that the value 8 stands for.
    """

    packed: Tensor
    scale: Tensor
    zero: Tensor

    def dequantize(self, inputs: int) -> Tensor:
        """Return the weight in float32, of as many inputs as it had."""
        values = unpack_nibbles(self.packed, inputs).int()
        return GroupedWeight(values, self.scale, self.zero).dequantize()


def quantize_int4(weight: Tensor) -> PackedInt4:
    """Quantise a weight [channels, inputs] of float32, bfloat16 or float16, of any strides.

    Raises:
        ValueError: The shape or the type is none of these.
        ConversionError: The weight holds NaN or inf.
    """
    if weight.dim() != 2 or weight.numel() == 0:
        raise ValueError(f"weight must be [1 or more channels, 1 or more inputs], got {tuple(weight.shape)}")
    if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"weight must be float32, bfloat16 or float16, got {weight.dtype}")
    require_finite(weight)
    return PackedInt4(*torch.ops.autoprec.quantize_int4(weight))


def reference(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `quantize_int4` in plain torch."""
    made = int4_group(weight)
    return pack_nibbles(made.values), made.scale, made.zero


def _fake(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    channels, inputs = weight.shape
    groups = (inputs + GROUP_SIZE - 1) // GROUP_SIZE
    return (
        weight.new_empty((channels, (inputs + 1) // 2), dtype=torch.uint8),
        weight.new_empty((channels, groups), dtype=torch.bfloat16),
        weight.new_empty((channels, groups), dtype=torch.bfloat16),
    )


define_operator(
    "quantize_int4",
    "(Tensor weight) -> (Tensor, Tensor, Tensor)",
    reference,
    _fake,
)
