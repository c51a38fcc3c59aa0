"""Linear layers with int8 weights and 8-bit (or 7-bit) activations: real integer products.

NaN and inf in the input, against the reference:

- `int8_dynamic` by FBGEMM and oneDNN: torch finds the scale itself and **skips NaN**; the NaN then enters as
  some integer, so the output is finite and wrong. inf makes everything NaN, as in the reference.
- `int8_dynamic_row`: the row's scale is NaN or inf, and so is its output.
- `int8_static`: NaN enters as some integer (finite, wrong output); inf saturates, as in the reference.

oneDNN applies the scales before it subtracts the zero point, so `int8_dynamic` and `int8_static` by oneDNN
overflow where the output would reach about 1e37 already.

Where that matters, check the inputs: quality and finiteness are measured on the whole model in any case.
"""

from __future__ import annotations

import warnings
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from autoprec.kernels.calibration import Calibration
from autoprec.kernels.checked import CheckedImplementation
from autoprec.kernels.modules import FormatLinear, Shared, compute, quantized_engine, remembered
from autoprec.kernels.quantize import QuantizedWeight, affine, affine_parameters, int8_channel, row_scale
from autoprec.kernels.registry import Memo, Operation, OpShape, register

_LEVELS = {"int8_dynamic": 255, "int8_dynamic_7bit": 127, "int8_static": 255, "int8_static_7bit": 127}


def shared_int8(weight: Tensor, memo: Memo, scale_dtype: torch.dtype = torch.float32) -> QuantizedWeight:
    """Return the int8 values and scales of a weight, the same tensors for tied modules.

    Raises:
        ConversionError: The weight holds NaN or inf.
    """

    def make() -> Tensor:
        made = int8_channel(weight.detach(), scale_dtype)
        remembered(memo, weight, f"{recipe} scale", lambda: made.scale)
        return made.values

    recipe = f"int8_channel {scale_dtype}"
    values = remembered(memo, weight, recipe, make)
    return QuantizedWeight(values, memo[ref(weight), f"{recipe} scale"])


class _QuantizedLinear(FormatLinear):
    """Base for weights packed by `torch.ops.quantized.linear_prepack`."""

    def __init__(self, source: nn.Linear, engine: str, *, pack_bias: bool = True) -> None:
        super().__init__(source)
        weight = int8_channel(source.weight.detach())
        zeros = torch.zeros(self.out_features, dtype=torch.long)
        with quantized_engine(engine), warnings.catch_warnings():
            # Quantised tensors are to leave torch (pytorch#184982), but FBGEMM packs nothing else.
            warnings.simplefilter("ignore", UserWarning)
            quantized = torch._make_per_channel_quantized_tensor(
                weight.values, weight.scale.double(), zeros, 0
            )
            packed = torch.ops.quantized.linear_prepack(quantized, self.bias if pack_bias else None)
        self._packed = Shared(packed)
        self._engine = engine
        self.hide()

    def opaque_bytes(self) -> int:
        """See `FormatModule.opaque_bytes`.

        FBGEMM pads outputs to a multiple of 16 and inputs to one of 4; oneDNN's object keeps the plain weight
        beside the packed one. Both hold a scale, a zero point and a column sum (12 bytes) an output.
        """
        if self._engine == "onednn":
            return self.out_features * (2 * self.in_features + 12)
        padded = (self.out_features + -self.out_features % 16) * (self.in_features + -self.in_features % 4)
        return padded + 12 * self.out_features

    def _dequantized(self) -> Tensor:
        weight: Tensor = torch.ops.quantized.linear_unpack(self._packed.value)[0]
        return weight.dequantize()


class DynamicLinear(_QuantizedLinear):
    """One activation scale a call, found by torch. `levels` is 255 for 8 bits, 127 for 7."""

    def __init__(self, source: nn.Linear, engine: str, levels: int) -> None:
        super().__init__(source, engine)
        self._reduce_range = levels == 127

    def _rows(self, rows: Tensor) -> Tensor:
        result: Tensor = torch.ops.quantized.linear_dynamic(
            rows.float(), self._packed.value, self._reduce_range
        )
        return result


class RowLinear(_QuantizedLinear):
    """One symmetric activation scale a row: FBGEMM multiplies rows scaled to [-127, 127] with scale 1."""

    def __init__(self, source: nn.Linear) -> None:
        super().__init__(source, "fbgemm", pack_bias=False)

    def _rows(self, rows: Tensor) -> Tensor:
        rows = rows.float()
        scale = row_scale(rows)
        result = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            rows / scale, 1.0, 128, self._packed.value
        )
        bias = self.bias
        return result.mul_(scale) if bias is None else torch.addcmul(bias, result, scale)


class StaticLinear(_QuantizedLinear):
    """A calibrated activation scale; FBGEMM quantises inside its product. 8 bits only."""

    def __init__(self, source: nn.Linear, calibration: Calibration) -> None:
        super().__init__(source, "fbgemm")
        self._scale, self._zero_point = affine_parameters(calibration.low, calibration.high, 255)

    def _rows(self, rows: Tensor) -> Tensor:
        result: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            rows.float(), self._scale, self._zero_point, self._packed.value
        )
        return result


class IntMMLinear(FormatLinear):
    """One symmetric activation scale a row, by `torch._int_mm` (oneDNN's s8 × s8 → s32)."""

    values: Tensor
    scale: Tensor

    def __init__(self, source: nn.Linear, weight: QuantizedWeight) -> None:
        super().__init__(source)
        self.register_buffer("values", weight.values)
        self.register_buffer("scale", weight.scale)

    def _rows(self, rows: Tensor) -> Tensor:
        rows = rows.float()
        scale = row_scale(rows)
        sums = torch._int_mm(rows.div(scale).round_().to(torch.int8), self.values.t())
        result = sums * self.scale
        bias = self.bias
        return result.mul_(scale) if bias is None else torch.addcmul(bias, result, scale)

    def _dequantized(self) -> Tensor:
        return QuantizedWeight(self.values, self.scale).dequantize()


class OnednnStaticLinear(FormatLinear):
    """A calibrated activation scale, by oneDNN's u8 × s8 product with fp32 output."""

    scale: Tensor
    zeros: Tensor

    def __init__(self, source: nn.Linear, calibration: Calibration, levels: int) -> None:
        super().__init__(source)
        weight = int8_channel(source.weight.detach())
        self._levels = levels
        self._input_scale, self._zero_point = affine_parameters(calibration.low, calibration.high, levels)
        self._packed = Shared(torch.ops.onednn.qlinear_prepack(weight.values, None))
        self.register_buffer("scale", weight.scale)
        self.register_buffer("zeros", torch.zeros(self.out_features, dtype=torch.int32))
        self.hide()

    def held_tensors(self) -> list[Tensor]:
        """See `FormatModule.held_tensors`."""
        return [self._packed.value]

    def _rows(self, rows: Tensor) -> Tensor:
        quantized = affine(rows.float(), self._input_scale, self._zero_point, self._levels)
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            quantized,
            self._input_scale,
            self._zero_point,
            self._packed.value,
            self.scale,
            self.zeros,
            self.bias,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return result

    def _dequantized(self) -> Tensor:
        return QuantizedWeight(self._packed.value.to_dense().t(), self.scale).dequantize()


class SmoothedLinear(FormatLinear):
    """Divides input channels by calibrated factors, which the weight inside was multiplied by."""

    shrink: Tensor

    def __init__(self, source: nn.Linear, factors: Tensor, inner: FormatLinear) -> None:
        super().__init__(source)
        self.inner = inner
        self.bias = inner.bias  # one tensor, held once
        self.register_buffer("shrink", 1 / factors)

    def _rows(self, rows: Tensor) -> Tensor:
        return compute(self.inner, rows.float() * self.shrink, self.inner._rows)

    def _dequantized(self) -> Tensor:
        return self.inner._dequantized() * self.shrink


def multiplied(source: nn.Linear, factors: Tensor) -> nn.Linear:
    """Return a Linear whose weight's columns are multiplied by factors, float32[inputs]."""
    made = nn.Linear(source.in_features, source.out_features, source.bias is not None, device="meta")
    made.weight = nn.Parameter(source.weight.detach().float() * factors, requires_grad=False)
    if source.bias is not None:
        made.bias = nn.Parameter(source.bias.detach(), requires_grad=False)
    return made


class _Linear(CheckedImplementation):
    operation = Operation.LINEAR

    def __init__(self, format_name: str, name: str) -> None:
        self.format = format_name
        self.name = name


class _Dynamic(_Linear):
    """Named after the engine that packs."""

    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        return DynamicLinear(module, self.name, _LEVELS[self.format])


class _Row(_Linear):
    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        return RowLinear(module)


class _IntMM(_Linear):
    def _refusal(self, shape: OpShape) -> str:
        # Seen with torch 2.13: a [n, 1] operand is read with the wrong strides.
        return "torch._int_mm is wrong for one input feature" if shape.inputs == 1 else ""

    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        return IntMMLinear(module, shared_int8(module.weight, memo))


class _Static(_Linear):
    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        assert calibration is not None
        if self.name == "fbgemm":
            return StaticLinear(module, calibration)
        return OnednnStaticLinear(module, calibration, _LEVELS[self.format])


class _Smooth(_Linear):
    """The format without smoothing, by an engine, on smoothed inputs."""

    def __init__(self, format_name: str, name: str, plain: _Linear) -> None:
        super().__init__(format_name, name)
        self._plain = plain

    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        assert calibration is not None
        factors = calibration.factors()
        inner = self._plain._convert(multiplied(module, factors), calibration, memo)
        assert isinstance(inner, FormatLinear)
        inner.format_name, inner.implementation_name = self._plain.format, self._plain.name
        return SmoothedLinear(module, factors, inner)


for _item in (
    _Dynamic("int8_dynamic", "fbgemm"),
    _Dynamic("int8_dynamic", "onednn"),
    _Dynamic("int8_dynamic_7bit", "fbgemm"),
    _Dynamic("int8_dynamic_7bit", "onednn"),
    _Row("int8_dynamic_row", "fbgemm"),
    _IntMM("int8_dynamic_row", "int_mm"),
    _Static("int8_static", "fbgemm"),
    _Static("int8_static", "onednn"),
    _Static("int8_static_7bit", "onednn"),
    _Smooth("int8_dynamic_smooth", "fbgemm", _Dynamic("int8_dynamic", "fbgemm")),
    _Smooth("int8_dynamic_smooth", "onednn", _Dynamic("int8_dynamic", "onednn")),
    _Smooth("int8_static_smooth", "fbgemm", _Static("int8_static", "fbgemm")),
    _Smooth("int8_static_smooth", "onednn", _Static("int8_static", "onednn")),
):
    register(_item)
