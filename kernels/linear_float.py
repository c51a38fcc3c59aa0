"""Linear layers in fp32, bf16, fp16, and with fp16 weights under fp32 arithmetic.

NaN and inf pass through all of these as they do through `F.linear`.

`torch.ops.onednn.linear_dynamic_fp16` is not among them: without AMX-FP16 it packs its weight again in every
call (100 times slower than `F.linear` at one row), and with it, it rounds activations to fp16, which is not
what `fp16_weight` says.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoprec.kernels.calibration import Calibration
from autoprec.kernels.checked import CheckedImplementation
from autoprec.kernels.modules import FormatLinear, Shared, cast, quantized_engine, remembered
from autoprec.kernels.quantize import require_finite, require_fp16_range
from autoprec.kernels.registry import Memo, Operation, register

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp16_weight": torch.float16}
"""Format to the dtype in which it holds weights."""


def narrowed(weight: Tensor, dtype: torch.dtype, memo: Memo) -> Tensor:
    """Return a copy of `weight` in `dtype`, the same one for tied modules.

    Raises:
        ConversionError: fp16 cannot hold a weight.
    """
    if dtype is torch.float16:
        require_fp16_range(weight)
    return remembered(memo, weight, str(dtype), lambda: weight.detach().to(dtype, copy=True))


class CastLinear(FormatLinear):
    """`F.linear` in another dtype than the module's own.

    Args:
        source: The module to stand for.
        stored: Its weight, [out_features, in_features], in the dtype to hold it in.
        compute: The dtype of the arithmetic.
    """

    stored: Tensor

    def __init__(self, source: nn.Linear, stored: Tensor, compute: torch.dtype) -> None:
        super().__init__(source, compute)
        self._compute = compute
        self.register_buffer("stored", stored)

    def _rows(self, rows: Tensor) -> Tensor:
        return F.linear(cast(rows, self._compute), cast(self.stored, self._compute), self.bias)

    def _dequantized(self) -> Tensor:
        return self.stored


class PackedLinear(FormatLinear):
    """oneDNN's product with a weight packed once, in fp32 or bf16."""

    def __init__(self, source: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__(source, dtype)
        weight = source.weight.detach().to(dtype)
        self._packed = Shared(torch.ops.mkldnn._reorder_linear_weight(weight))
        self.hide()

    def held_tensors(self) -> list[Tensor]:
        """See `FormatModule.held_tensors`."""
        return [self._packed.value]

    def _rows(self, rows: Tensor) -> Tensor:
        packed = self._packed.value
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            cast(rows, packed.dtype), packed, self.bias, "none", [], ""
        )
        return result

    def _dequantized(self) -> Tensor:
        weight: Tensor = self._packed.value.to_dense()
        return weight


class FbgemmHalfLinear(FormatLinear):
    """FBGEMM's fp32 product with weights packed as fp16."""

    def __init__(self, source: nn.Linear) -> None:
        super().__init__(source)
        with quantized_engine("fbgemm"):
            packed = torch.ops.quantized.linear_prepack_fp16(source.weight.detach().float(), self.bias)
        self._packed = Shared(packed)
        self.hide()

    def opaque_bytes(self) -> int:
        """See `FormatModule.opaque_bytes`: FBGEMM pads the outputs to a multiple of 16."""
        return 2 * self.in_features * (self.out_features + -self.out_features % 16)

    def _rows(self, rows: Tensor) -> Tensor:
        result: Tensor = torch.ops.quantized.linear_dynamic_fp16(rows.float(), self._packed.value)
        return result

    def _dequantized(self) -> Tensor:
        weight: Tensor = torch.ops.quantized.linear_unpack_fp16(self._packed.value)[0]
        return weight


class _Linear(CheckedImplementation):
    operation = Operation.LINEAR

    def __init__(self, format_name: str) -> None:
        self.format = format_name


class _Aten(_Linear):
    devices = ("cpu", "cuda")
    name = "aten"

    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        dtype = DTYPES[self.format]
        if module.weight.dtype is dtype and (module.bias is None or module.bias.dtype is dtype):
            return module  # type: ignore[no-any-return]
        return CastLinear(module, narrowed(module.weight, dtype, memo), dtype)


class _Upcast(_Linear):
    devices = ("cpu", "cuda")
    name = "upcast"

    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        return CastLinear(module, narrowed(module.weight, torch.float16, memo), torch.float32)


class _Packed(_Linear):
    name = "onednn_packed"

    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        return PackedLinear(module, DTYPES[self.format])


class _FbgemmHalf(_Linear):
    name = "fbgemm"

    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        # FBGEMM packs NaN and inf as finite numbers.
        require_finite(module.weight)
        require_fp16_range(module.weight)
        return FbgemmHalfLinear(module)


for _item in (
    _Aten("fp32"),
    _Packed("fp32"),
    _Aten("bf16"),
    _Packed("bf16"),
    _Aten("fp16"),
    _FbgemmHalf("fp16_weight"),
    _Upcast("fp16_weight"),
):
    register(_item)
