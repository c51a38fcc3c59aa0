"""Linear layers whose kernels are in Triton: fp8, int8 by rows, and weights of 8 or 4 bits.

One module serves CPUs and GPUs and moves between them with `.to(device)`: its weights are quantised once and
held in plain buffers. On a GPU the operators run Triton's kernels, on a CPU their reference: the numerics are
those of the GPU, so that quality can be measured anywhere, and the speed tells nothing.

Casts to fp8 saturate. NaN and inf make their row's output NaN (of weight-only formats: pass through).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, Self
from weakref import ref

import torch
from torch import Tensor, nn

from autoprec.kernels.calibration import Calibration
from autoprec.kernels.checked import CheckedImplementation
from autoprec.kernels.families import detect, native
from autoprec.kernels.formats import FORMATS
from autoprec.kernels.linear_int8 import shared_int8
from autoprec.kernels.linear_weight_only import shared_int4
from autoprec.kernels.modules import FormatLinear, output_dtype, remembered
from autoprec.kernels.ops.quantize import Quantized, quantize
from autoprec.kernels.ops.scaled_mm import OUTPUTS, scaled_mm
from autoprec.kernels.ops.weight_only_mm import weight_only_mm
from autoprec.kernels.quantize import GroupedWeight, QuantizedWeight, unpack_nibbles
from autoprec.kernels.registry import Level, Memo, Operation, Support, register

_WIDE = torch.float32


class TritonLinear(FormatLinear):
    """Base of the Linear layers here: under autocast the output has its dtype, as a Linear's has."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the product for `input` [..., in_features], in its dtype or autocast's."""
        result = super().forward(input if input.dtype in OUTPUTS else input.to(_WIDE))
        return result.to(output_dtype(input))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move buffers between devices, and leave their dtypes: `half()` would turn fp8 into float16."""

        def moved(tensor: Tensor) -> Tensor:
            made = fn(tensor)
            return made if made.dtype is tensor.dtype else tensor.to(made.device)

        return super()._apply(moved, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool, missing_keys: Any,
        unexpected_keys: Any, error_msgs: list[str],
    ) -> None:  # fmt: skip
        """Refuse buffers of another dtype, which torch would cast: another format's are other numbers."""
        for name, held in self._buffers.items():
            given = state_dict.get(prefix + name)
            if held is not None and given is not None and given.dtype is not held.dtype:
                error_msgs.append(
                    f"dtype mismatch for {prefix}{name}: {self.format_name} holds {held.dtype}, the state "
                    f"has {given.dtype}; load it where the same format was applied"
                )
                return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


class ScaledLinear(TritonLinear):
    """Quantised weights times activations that are quantised as they come.

    Args:
        source: The module to stand for.
        weight: Its quantised weight, [out_features, in_features].
        granularity: What shares a scale in activations, `row` or `group`.
    """

    values: Tensor
    scale: Tensor

    def __init__(self, source: nn.Linear, weight: Quantized, granularity: str) -> None:
        super().__init__(source)
        self._granularity = granularity
        self.register_buffer("values", weight.values)
        self.register_buffer("scale", weight.scale)

    def _rows(self, rows: Tensor) -> Tensor:
        inputs = quantize(rows, self.values.dtype, self._granularity)
        return scaled_mm(inputs, self._held(), self.bias, out_dtype=rows.dtype)

    def _held(self) -> Quantized:
        return Quantized(self.values, self.scale)

    def _dequantized(self) -> Tensor:
        return self._held().dequantize()


class WeightOnlyLinear(TritonLinear):
    """int8 or 4-bit weights, unpacked inside the product with bfloat16 activations.

    Args:
        source: The module to stand for.
        values: int8 [out_features, in_features], or with `zero` uint8 [out_features, ceil(in_features / 2)].
        scale: bfloat16, [out_features] or [out_features, groups].
        zero: bfloat16 [out_features, groups], the weights that the 4-bit value 8 stands for.
    """

    values: Tensor
    scale: Tensor
    zero: Tensor | None

    def __init__(self, source: nn.Linear, values: Tensor, scale: Tensor, zero: Tensor | None = None) -> None:
        super().__init__(source)
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", zero)

    def _rows(self, rows: Tensor) -> Tensor:
        return weight_only_mm(rows, self.values, self.scale, self.zero, self.bias)

    def _dequantized(self) -> Tensor:
        if self.zero is None:
            return QuantizedWeight(self.values, self.scale).dequantize()
        whole = unpack_nibbles(self.values, self.in_features)
        return GroupedWeight(whole, self.scale, self.zero).dequantize()


class _Triton(CheckedImplementation):
    operation = Operation.LINEAR
    name = "triton"
    devices = ("cpu", "cuda")

    def __init__(self, format_name: str) -> None:
        self.format = format_name

    def _offer(self, device: torch.device) -> Support:
        if device.type == "cpu":
            reason = "no CPU kernel: only the rounding is reproduced"
            return Support(Level.EMULATED, reason)
        if importlib.util.find_spec("triton") is None:
            return Support(Level.REFUSED, "triton is not installed; pip install triton")
        return _computes(FORMATS[self.format].activation, device)


class _Scaled(_Triton):
    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        fmt = FORMATS[self.format]
        if fmt.weight == "int8":
            plain = shared_int8(module.weight, memo)
            weight = Quantized(plain.values, plain.scale[:, None])
        else:
            weight = _shared(module.weight, self.format, memo)
        return ScaledLinear(module, weight, "group" if fmt.activation_scale == "block" else "row")


class _WeightOnly(_Triton):
    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        if FORMATS[self.format].weight == "int4":
            return WeightOnlyLinear(module, *shared_int4(module.weight, memo))
        plain = shared_int8(module.weight, memo, torch.bfloat16)
        return WeightOnlyLinear(module, plain.values, plain.scale)


@functools.cache
def _computes(operand: str, device: torch.device) -> Support:
    """Return whether a GPU multiplies a number type, by its family's file and by what compilers said."""
    family = detect(device)
    if family is None:
        return Support(Level.REFUSED, f"no file of kernels/families describes {device}")
    support = native(family, operand)
    if support.level is Level.NATIVE:
        return support
    return Support(Level.REFUSED, support.reason or f"{family.title} does not multiply {operand}")


def _shared(weight: Tensor, format_name: str, memo: Memo) -> Quantized:
    """Return a weight in fp8 with its scales, the same tensors for tied modules."""

    def make() -> Tensor:
        fmt = FORMATS[format_name]
        granularity = "block" if fmt.weight_scale == "block" else "row"
        made = quantize(weight.detach(), getattr(torch, fmt.weight), granularity)
        remembered(memo, weight, f"{format_name} scale", lambda: made.scale)
        return made.values

    values = remembered(memo, weight, format_name, make)
    scale = memo[ref(weight), f"{format_name} scale"]
    return Quantized(values, scale)


for _item in (
    _Scaled("fp8_e4m3"),
    _Scaled("fp8_e5m2"),
    _Scaled("fp8_block"),
    _Scaled("int8_dynamic_row"),
    _WeightOnly("int8_weight_only"),
    _WeightOnly("int4_weight_only"),
):
    register(_item)
