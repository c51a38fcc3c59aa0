"""Convolutions in each format.

NaN and inf: as in `F.conv2d` for the float formats and `int8_weight_only`. `int8_dynamic` finds its scale
here, so one NaN or inf makes the whole output NaN, as in the reference. `int8_static` saturates inf, and NaN
enters as some integer: a finite, wrong output.

FBGEMM's int8 convolutions are not among them: its depthwise kernel saturates even where VNNI exists (13%
wrong on full-range values), and `conv2d_dynamic` agrees with neither 8-bit nor 7-bit inputs (torch 2.13).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoprec.kernels.calibration import Calibration
from autoprec.kernels.checked import CheckedImplementation, numeric_padding
from autoprec.kernels.linear_float import DTYPES, narrowed
from autoprec.kernels.linear_int8 import shared_int8
from autoprec.kernels.modules import Shared, WeightedModule, compute
from autoprec.kernels.quantize import (
    SMALLEST_DYNAMIC_SCALE,
    QuantizedWeight,
    affine,
    affine_parameters,
    int8_channel,
)
from autoprec.kernels.registry import Memo, Operation, register

_LEVELS = {"int8_dynamic": 255, "int8_dynamic_7bit": 127, "int8_static": 255, "int8_static_7bit": 127}


class FormatConv2d(WeightedModule):
    """Base of the modules that stand for a Conv2d: any padding mode, batched or not."""

    def __init__(self, source: nn.Conv2d, bias_dtype: torch.dtype = torch.float32) -> None:
        super().__init__(source, bias_dtype)
        self.in_channels = source.in_channels
        self.out_channels = source.out_channels
        self.kernel_size = source.kernel_size
        self.stride = source.stride
        self.padding = source.padding
        self.dilation = source.dilation
        self.groups = source.groups
        self.padding_mode = source.padding_mode
        self.transposed = source.transposed
        self.output_padding = source.output_padding
        self._sides = list(source._reversed_padding_repeated_twice)
        left, right, top, bottom = self._sides
        # The kernels pad with zeros and evenly; other paddings are made before them.
        self._pad_first = self.padding_mode != "zeros" or left != right or top != bottom
        self._padding = [0, 0] if self._pad_first else list(numeric_padding(source))

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of `input` [(batch,) channels, height, width] in its dtype."""
        if input.dim() not in (3, 4) or input.shape[-3] != self.in_channels:
            raise RuntimeError(f"input has shape {list(input.shape)}, expected {self.in_channels} channels")
        batch = input if input.dim() == 4 else input[None]
        if self._pad_first:
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            batch = F.pad(batch, self._sides, mode=mode)
        if batch.shape[0] == 0:
            # The kernels refuse an empty batch; aten knows the shape without computing anything.
            result = F.conv2d(
                batch, self.weight, None, self.stride, self._padding, self.dilation, self.groups
            )
        else:
            result = compute(self, batch, self._images)
        return (result if input.dim() == 4 else result[0]).to(input.dtype)

    def extra_repr(self) -> str:
        """Return what `print(model)` shows."""
        size = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        return f"{size}, {self.format_name} by {self.implementation_name}"

    def compute_opaque(self, inputs: Tensor) -> Tensor:
        """See `OpaqueModule.compute_opaque`."""
        return self._images(inputs)

    def result_like(self, inputs: Tensor) -> Tensor:
        """See `OpaqueModule.result_like`."""
        weight = inputs.new_empty(self.out_channels, self.in_channels // self.groups, *self.kernel_size)
        shape = F.conv2d(inputs, weight, None, self.stride, self._padding, self.dilation, self.groups).shape
        return inputs.new_empty(shape)

    @abstractmethod
    def _images(self, batch: Tensor) -> Tensor:
        """Convolve [batch, channels, height, width] with zero padding `self._padding`."""


class CastConv2d(FormatConv2d):
    """`F.conv2d` in another dtype, over a weight held in yet another: see `CastLinear`."""

    stored: Tensor

    def __init__(self, source: nn.Conv2d, stored: Tensor, compute: torch.dtype) -> None:
        super().__init__(source, compute)
        self._compute = compute
        self.register_buffer("stored", stored)

    def _images(self, batch: Tensor) -> Tensor:
        weight = self._dequantized().to(self._compute)
        inputs = batch.to(self._compute)
        return F.conv2d(inputs, weight, self.bias, self.stride, self._padding, self.dilation, self.groups)

    def _dequantized(self) -> Tensor:
        return self.stored


class Int8Conv2d(FormatConv2d):
    """int8 values made bfloat16 in each call; the scale comes after, as bfloat16 could not hold it."""

    values: Tensor
    scale: Tensor

    def __init__(self, source: nn.Conv2d, weight: QuantizedWeight) -> None:
        super().__init__(source)
        self.register_buffer("values", weight.values)
        self.register_buffer("scale", weight.scale)

    def _images(self, batch: Tensor) -> Tensor:
        values, inputs = self.values.to(torch.bfloat16), batch.to(torch.bfloat16)
        result = F.conv2d(inputs, values, None, self.stride, self._padding, self.dilation, self.groups)
        result = result * self.scale.float().view(-1, 1, 1)
        return result if self.bias is None else result.add_(self.bias.view(-1, 1, 1))

    def _dequantized(self) -> Tensor:
        return QuantizedWeight(self.values, self.scale).dequantize()


class PackedConv2d(FormatConv2d):
    """oneDNN's convolution with a weight packed once, in fp32 or bf16."""

    def __init__(self, source: nn.Conv2d, dtype: torch.dtype) -> None:
        super().__init__(source, dtype)
        # Without an input size: with one, grouped weights were blown up to 128 times their bytes.
        packed = torch.ops.mkldnn._reorder_convolution_weight(
            source.weight.detach().to(dtype), self._padding, self.stride, self.dilation, self.groups
        )
        self._packed = Shared(packed)
        self.hide()

    def held_tensors(self) -> list[Tensor]:
        """See `FormatModule.held_tensors`."""
        return [self._packed.value]

    def _images(self, batch: Tensor) -> Tensor:
        packed = self._packed.value
        result: Tensor = torch.ops.mkldnn._convolution_pointwise(
            batch.to(packed.dtype),
            packed,
            self.bias,
            self._padding,
            self.stride,
            self.dilation,
            self.groups,
            "none",
            [],
            "",
        )
        return result

    def _dequantized(self) -> Tensor:
        weight: Tensor = self._packed.value.to_dense()
        return weight


class QuantizedConv2d(FormatConv2d):
    """oneDNN's u8 × s8 convolution with fp32 output.

    Args:
        source: The module to stand for.
        levels: Largest activation integer: 255 for 8 bits, 127 for 7.
        calibration: The calibrated range, or `None` to find it in each call.
    """

    scale: Tensor
    zeros: Tensor

    def __init__(self, source: nn.Conv2d, levels: int, calibration: Calibration | None) -> None:
        super().__init__(source)
        weight = int8_channel(source.weight.detach())
        self._levels = levels
        self._static = calibration and affine_parameters(calibration.low, calibration.high, levels)
        # The packing does not depend on the input's scale and zero point (seen: same results with any).
        packed = torch.ops.onednn.qconv_prepack(
            weight.values, weight.scale, 1.0, 0, self.stride, self._padding, self.dilation, self.groups, None
        )
        self._packed = Shared(packed)
        self.register_buffer("scale", weight.scale)
        self.register_buffer("zeros", torch.zeros(self.out_channels, dtype=torch.int32))
        self.hide()

    def held_tensors(self) -> list[Tensor]:
        """See `FormatModule.held_tensors`."""
        return [self._packed.value]

    def _images(self, batch: Tensor) -> Tensor:
        batch = batch.float()
        scale, zero_point = self._static or self._dynamic(batch)
        # A NaN scale (of an input with NaN or inf) goes through the arithmetic into every output.
        result: Tensor = torch.ops.onednn.qconv2d_pointwise(
            affine(batch, scale, zero_point, self._levels),
            scale,
            zero_point,
            self._packed.value,
            self.scale,
            self.zeros,
            self.bias,
            self.stride,
            self._padding,
            self.dilation,
            self.groups,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return result

    def _dynamic(self, batch: Tensor) -> tuple[float, int]:
        low, high = (bound.item() for bound in torch.aminmax(batch))
        if not (math.isfinite(low) and math.isfinite(high)):
            return math.nan, 0
        return affine_parameters(low, high, self._levels, SMALLEST_DYNAMIC_SCALE)

    def _dequantized(self) -> Tensor:
        return QuantizedWeight(self._packed.value.to_dense(), self.scale).dequantize()


class _Conv2d(CheckedImplementation):
    operation = Operation.CONV2D

    def __init__(self, format_name: str, name: str) -> None:
        self.format = format_name
        self.name = name


class _Aten(_Conv2d):
    devices = ("cpu", "cuda")

    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        dtype = DTYPES[self.format]
        if module.weight.dtype is dtype:
            return module  # type: ignore[no-any-return]
        return CastConv2d(module, narrowed(module.weight, dtype, memo), dtype)


class _Upcast(_Conv2d):
    devices = ("cpu", "cuda")

    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        return CastConv2d(module, narrowed(module.weight, torch.float16, memo), torch.float32)


class _Packed(_Conv2d):
    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        return PackedConv2d(module, DTYPES[self.format])


class _Int8(_Conv2d):
    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        return Int8Conv2d(module, shared_int8(module.weight, memo, torch.bfloat16))


class _Quantized(_Conv2d):
    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        dynamic = self.format.startswith("int8_dynamic")
        return QuantizedConv2d(module, _LEVELS[self.format], None if dynamic else calibration)


for _item in (
    _Aten("fp32", "aten"),
    _Packed("fp32", "onednn_packed"),
    _Aten("bf16", "aten"),
    _Packed("bf16", "onednn_packed"),
    _Aten("fp16", "aten"),
    _Upcast("fp16_weight", "upcast"),
    *(_Quantized(name, "onednn") for name in _LEVELS),
    _Int8("int8_weight_only", "dequantize"),
):
    register(_item)
