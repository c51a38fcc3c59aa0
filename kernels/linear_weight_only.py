"""Linear layers with int8 or 4-bit weights and bfloat16 activations. NaN and inf pass through.

`int8pack` and `int4pack` are torch's kernels. `dequantize` holds the same weights plainly and undoes the
quantisation in each call: slow, but it takes every shape and tied modules share its tensors.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoprec.kernels.calibration import Calibration
from autoprec.kernels.checked import CheckedImplementation
from autoprec.kernels.formats import GROUP_SIZE
from autoprec.kernels.linear_int8 import shared_int8
from autoprec.kernels.modules import FormatLinear, remembered
from autoprec.kernels.ops.quantize_int4 import quantize_int4
from autoprec.kernels.quantize import GroupedWeight, QuantizedWeight, int4_group, unpack_nibbles
from autoprec.kernels.registry import Memo, Operation, OpShape, register

_BF16 = torch.bfloat16


def shared_int4(weight: Tensor, memo: Memo) -> tuple[Tensor, Tensor, Tensor]:
    """Return packed 4-bit values, scales and zeros of a matrix, the same tensors for tied modules.

    Returns:
        uint8 [channels, ceil(inputs / 2)], bfloat16 [channels, groups], bfloat16 [channels, groups].

    Raises:
        ConversionError: The weight holds NaN or inf.
    """

    def make() -> Tensor:
        made = quantize_int4(weight.detach())
        remembered(memo, weight, "int4_group scale", lambda: made.scale)
        remembered(memo, weight, "int4_group zero", lambda: made.zero)
        return made.packed

    packed = remembered(memo, weight, "int4_group", make)
    key = ref(weight)
    return packed, memo[key, "int4_group scale"], memo[key, "int4_group zero"]


class Int8PackLinear(FormatLinear):
    """`torch._weight_int8pack_mm`, or with `dequantize` a bfloat16 product with the values unpacked."""

    values: Tensor
    scale: Tensor

    def __init__(self, source: nn.Linear, weight: QuantizedWeight, *, dequantize: bool) -> None:
        super().__init__(source)
        self._dequantize_first = dequantize
        self.register_buffer("values", weight.values)
        self.register_buffer("scale", weight.scale)

    def _rows(self, rows: Tensor) -> Tensor:
        rows = rows.to(_BF16)
        if self._dequantize_first:
            # int8 values are exact in bfloat16; values times scale would not be.
            result = F.linear(rows, self.values.to(_BF16)) * self.scale.float()
        else:
            result = torch._weight_int8pack_mm(rows, self.values, self.scale)
        # The sum is in fp32, as the bias is: one rounding fewer.
        bias = self.bias
        return result if bias is None else result + bias

    def _dequantized(self) -> Tensor:
        return QuantizedWeight(self.values, self.scale).dequantize()


class Int4PackLinear(FormatLinear):
    """`torch._weight_int4pack_mm_for_cpu`.

    Args:
        source: The module to stand for; outputs a multiple of 16, inputs of the group size.
        weight: Its grouped weight.
    """

    packed: Tensor
    scales_and_zeros: Tensor

    def __init__(self, source: nn.Linear, weight: GroupedWeight) -> None:
        super().__init__(source)
        self.register_buffer("packed", torch._convert_weight_to_int4pack_for_cpu(weight.values, 1))
        # [groups, outputs, 2]
        both = torch.stack((weight.scale, weight.zero), dim=-1).transpose(0, 1).contiguous()
        self.register_buffer("scales_and_zeros", both)

    def _rows(self, rows: Tensor) -> Tensor:
        return self._product(rows.to(_BF16), self.bias)

    def _product(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        result = torch._weight_int4pack_mm_for_cpu(rows, self.packed, GROUP_SIZE, self.scales_and_zeros)
        return result if bias is None else result + bias

    def _dequantized(self) -> Tensor:
        # The packed layout depends on the processor; a product with the identity reads it without knowing it.
        return self._product(torch.eye(self.in_features, dtype=_BF16), None).t()


class Int4Linear(FormatLinear):
    """4-bit weights held two to a byte, made fp32 in each call: bfloat16 cannot hold them exactly."""

    packed: Tensor
    scale: Tensor
    zero: Tensor

    def __init__(self, source: nn.Linear, packed: Tensor, scale: Tensor, zero: Tensor) -> None:
        super().__init__(source)
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", zero)

    def _rows(self, rows: Tensor) -> Tensor:
        return F.linear(rows.to(_BF16).float(), self._dequantized(), self.bias)

    def _dequantized(self) -> Tensor:
        return GroupedWeight(
            unpack_nibbles(self.packed, self.in_features), self.scale, self.zero
        ).dequantize()


class _Linear(CheckedImplementation):
    operation = Operation.LINEAR


class _Int8(_Linear):
    format = "int8_weight_only"

    def __init__(self, name: str) -> None:
        self.name = name

    def _refusal(self, shape: OpShape) -> str:
        if self.name == "int8pack" and shape.inputs % 16:
            # Reads past the end of its arrays: wrong numbers or a crash of the process (torch 2.13, AVX-512).
            return f"torch._weight_int8pack_mm needs inputs in multiples of 16, got {shape.inputs}"
        return ""

    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        weight = shared_int8(module.weight, memo, _BF16)
        return Int8PackLinear(module, weight, dequantize=self.name == "dequantize")


class _Int4Pack(_Linear):
    format = "int4_weight_only"
    name = "int4pack"

    def _refusal(self, shape: OpShape) -> str:
        if shape.inputs % GROUP_SIZE or shape.outputs % 16:
            return (
                f"torch._weight_int4pack_mm_for_cpu needs inputs in multiples of {GROUP_SIZE} and outputs in "
                f"multiples of 16, got {shape.inputs} and {shape.outputs}"
            )
        return ""

    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        return Int4PackLinear(module, int4_group(module.weight.detach()))


class _Int4(_Linear):
    format = "int4_weight_only"
    name = "dequantize"

    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        return Int4Linear(module, *shared_int4(module.weight, memo))


for _item in (_Int8("int8pack"), _Int8("dequantize"), _Int4Pack(), _Int4()):
    register(_item)
