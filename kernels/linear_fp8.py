"""Linear layers in fp8, emulated: the rounding of weights and activations in fp32 arithmetic, no speed.

Casts saturate. NaN makes its row's output NaN, and so does inf, whose scale is inf.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from autoprec.kernels import reference
from autoprec.kernels.calibration import Calibration
from autoprec.kernels.cpu import CpuImplementation
from autoprec.kernels.modules import FormatLinear, remembered
from autoprec.kernels.registry import Level, Memo, Operation, register


class FakeLinear(FormatLinear):
    """`F.linear` in fp32 over rounded weights and inputs; holds its weight in fp32, four times fp8's size.

    Args:
        source: The module to stand for.
        fake_weight: Its weight as the format holds it, in fp32.
        format_name: The format, a key of `FORMATS`.
    """

    fake_weight: Tensor

    def __init__(self, source: nn.Linear, fake_weight: Tensor, format_name: str) -> None:
        super().__init__(source)
        self.format_name = format_name
        self.register_buffer("fake_weight", fake_weight)

    def _rows(self, rows: Tensor) -> Tensor:
        return F.linear(reference.fake_inputs(self.format_name, rows, None), self.fake_weight, self.bias)

    def _dequantized(self) -> Tensor:
        return self.fake_weight


class _Emulated(CpuImplementation):
    operation = Operation.LINEAR
    name = "emulated"
    level = Level.EMULATED
    note = "no CPU has fp8 kernels: only the rounding is reproduced"

    def __init__(self, format_name: str) -> None:
        self.format = format_name

    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        weight = remembered(
            memo,
            module.weight,
            self.format,
            lambda: reference.fake_weight(self.format, module.weight.detach()),
        )
        return FakeLinear(module, weight, self.format)


for _name in ("fp8_e4m3", "fp8_e5m2", "fp8_block"):
    register(_Emulated(_name))
