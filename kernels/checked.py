"""What the implementations share: when they are supported, and which modules they take.

Support is found out rather than assumed: besides its static rules, every implementation is run once a process
on a small module whose products are as large as 8 bits allow, and compared with the reference. So a missing
operator, and an int8 kernel that adds pairs in 16 bits and saturates (processors without VNNI), is refused.
"""

from __future__ import annotations

import copy
import functools
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from autoprec.errors import ConversionError
from autoprec.kernels import reference
from autoprec.kernels.calibration import Calibration
from autoprec.kernels.formats import FORMATS
from autoprec.kernels.modules import keep_hooks
from autoprec.kernels.registry import (
    FormatModule,
    Implementation,
    Level,
    Memo,
    Operation,
    OpShape,
    Support,
)

_MODULES: dict[Operation, type[nn.Module]] = {
    Operation.LINEAR: nn.Linear,
    Operation.CONV2D: nn.Conv2d,
    Operation.EMBEDDING: nn.Embedding,
}
_FLOATS = ("float32", "bfloat16", "float16")


def static_shape(module: nn.Module, rows: int = 1) -> OpShape:
    """Describe a Linear, Conv2d or Embedding seen with `rows` rows.

    String paddings of a Conv2d are given as numbers; `same` with an even kernel is rounded down.

    Raises:
        ConversionError: The module is none of these.
    """
    if isinstance(module, nn.Linear):
        return OpShape(
            Operation.LINEAR,
            rows,
            module.in_features,
            module.out_features,
            module.bias is not None,
            dtype=_dtype_name(module.weight),
        )
    if isinstance(module, nn.Embedding):
        return OpShape(
            Operation.EMBEDDING,
            rows,
            module.num_embeddings,
            module.embedding_dim,
            False,
            dtype=_dtype_name(module.weight),
        )
    if isinstance(module, nn.Conv2d):
        return OpShape(
            Operation.CONV2D,
            rows,
            module.in_channels,
            module.out_channels,
            module.bias is not None,
            kernel=_pair(module.kernel_size),
            stride=_pair(module.stride),
            padding=numeric_padding(module),
            dilation=_pair(module.dilation),
            groups=module.groups,
            dtype=_dtype_name(module.weight),
        )
    raise ConversionError(f"{type(module).__name__} is no Linear, Conv2d or Embedding")


def numeric_padding(module: nn.Conv2d) -> tuple[int, int]:
    """Return a convolution's padding as numbers (the smaller side, where `same` pads unevenly)."""
    if module.padding == "valid":
        return (0, 0)
    if module.padding == "same":
        height, width = (d * (k - 1) // 2 for d, k in zip(module.dilation, module.kernel_size, strict=True))
        return (height, width)
    return _pair(cast("tuple[int, ...]", module.padding))


class CheckedImplementation(Implementation):
    """Base of the implementations, which are tried on a device before they are offered there.

    Attributes:
        devices: Types of the devices that it has kernels for.
    """

    devices: tuple[str, ...] = ("cpu",)

    def support(self, shape: OpShape, device: torch.device) -> Support:
        """See `Implementation.support`."""
        if device.type not in self.devices:
            return Support(Level.REFUSED, f"{self.name} is {self._places()} only, not for {device.type}")
        if device.type == "cuda" and not torch.cuda.is_available():
            return Support(Level.REFUSED, f"torch {torch.__version__} finds no GPU here")
        offered = self._offer(device)
        if offered.level is Level.REFUSED:
            return offered
        if reason := self._static_refusal(shape) or self_check(self, str(device)):
            return Support(Level.REFUSED, reason)
        return offered

    def convert(self, module: nn.Module, calibration: Calibration | None, memo: Memo) -> nn.Module:
        """See `Implementation.convert`."""
        reason = self._module_refusal(module)
        if not reason:
            device = cast("Tensor", module.weight).device
            reason = self._static_refusal(static_shape(module)) or self_check(self, str(device))
        if not reason and FORMATS[self.format].calibrated:
            reason = _range_refusal(calibration) or self._smoothing_refusal(module, calibration)
        if reason:
            kind = type(module).__name__
            raise ConversionError(f"{self.format} by {self.name} cannot take this {kind}: {reason}")
        # Weights made in inference mode could not be used outside of it.
        with torch.inference_mode(False), torch.no_grad():
            converted = self._convert(module, calibration, memo)
        if isinstance(converted, FormatModule):
            converted.format_name = self.format
            converted.implementation_name = self.name
            converted.train(module.training)
            keep_hooks(module, converted)
        return converted

    @abstractmethod
    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        """Convert a module that has passed every check."""

    def _offer(self, device: torch.device) -> Support:
        """Return what is offered on one of `devices`, before anything is tried."""
        return Support(Level.NATIVE)

    def _places(self) -> str:
        return " and ".join(name.upper() for name in self.devices)

    def _refusal(self, shape: OpShape) -> str:
        """Return why a shape is refused, or an empty string."""
        return ""

    def _static_refusal(self, shape: OpShape) -> str:
        if shape.operation is not self.operation:
            return f"it computes {self.operation.value}, not {shape.operation.value}"
        if shape.dtype not in _FLOATS:
            return f"weights are {shape.dtype}; {', '.join(_FLOATS)} can be converted"
        if min(shape.inputs, shape.outputs) < 1:
            return "the weight is empty"
        return self._refusal(shape)

    def _module_refusal(self, module: nn.Module) -> str:
        kind = _MODULES[self.operation]
        if not isinstance(module, kind):
            return f"it converts {kind.__name__}"
        if type(module).forward is not kind.forward or "forward" in vars(module):
            return f"it has a forward of its own, which may do more than {kind.__name__}'s"
        if "weight" not in module._parameters:
            return "its weight is computed from other parameters; remove the parametrization first"
        weight = module._parameters["weight"]
        if weight is None or weight.device.type not in self.devices:
            place = weight.device if weight is not None else "no device"
            return f"its weight is on {place}, and it is {self._places()} only"
        return ""

    def _smoothing_refusal(self, module: nn.Module, calibration: Calibration | None) -> str:
        if not FORMATS[self.format].smooth:
            return ""
        found, inputs = len(calibration.smoothing) if calibration else 0, static_shape(module).inputs
        return "" if found == inputs else f"it needs {inputs} smoothing exponents, got {found}"


@functools.cache
def self_check(item: CheckedImplementation, device: str = "cpu") -> str:
    """Return why an implementation does not work in this process, or an empty string; found out once.

    Args:
        item: The implementation.
        device: Where to try it, `cpu` or `cuda:1`.
    """
    with torch.inference_mode(False), torch.no_grad():
        calibration = _SMOOTHED_SAMPLE if FORMATS[item.format].smooth else _SAMPLE_RANGE
        module, inputs, compute = _sample(item.operation, item.format, calibration)
        try:
            converted = item._convert(copy.deepcopy(module).to(device), calibration, {})
            for batch in (inputs, inputs[:1], inputs[:0]):
                error = relative_error(converted(batch.to(device)).cpu(), compute(batch))
                if not error <= reference.TOLERANCE[item.format]:
                    saturates = FORMATS[item.format].weight == "int8"
                    cause = " (8-bit products saturate without VNNI)" if saturates else ""
                    return f"on this device it is wrong by {error:.1%}{cause}"
        except Exception as failure:
            # What a build of torch lacks shows as an error of any kind.
            return f"it does not run here: {(str(failure) or type(failure).__name__).splitlines()[0]}"
    return ""


_SAMPLE_RANGE = Calibration(-1.0, 1.0)
_SMOOTHED_SAMPLE = Calibration(-1.0, 1.0, (0,) * 64)


def _sample(
    operation: Operation, format_name: str, calibration: Calibration
) -> tuple[nn.Module, Tensor, Callable[[Tensor], Tensor]]:
    """Return a small module, its inputs and the reference.

    Inputs and weights lie near their largest magnitude, so that sums of products are as large as they get.
    """
    generator = torch.Generator().manual_seed(0)

    def large(*shape: int) -> nn.Parameter:
        return nn.Parameter(0.9 + 0.1 * torch.rand(shape, generator=generator, dtype=torch.float32), False)

    inputs = large(40, 64).detach()
    inputs[::2, ::2] *= -1
    inputs[0, 0] = -1.0
    if operation is Operation.EMBEDDING:
        table = nn.Embedding(40, 64, _weight=inputs)
        return table, torch.arange(40), lambda batch: reference.embedding(format_name, batch, inputs)
    if operation is Operation.CONV2D:
        convolution = nn.Conv2d(16, 32, 2, bias=False, device="meta")
        convolution.weight = large(32, 16, 2, 2)
        images = inputs.view(10, 16, 4, 4)
        return (
            convolution,
            images,
            lambda batch: reference.conv2d(format_name, batch, convolution, calibration),
        )
    if FORMATS[format_name].weight_scale == "block":
        # Several blocks, the last ones shorter, and a bias.
        inputs = large(40, 300).detach()
        linear = nn.Linear(300, 140, device="meta")
        linear.weight, linear.bias = large(140, 300), large(140)
    else:
        linear = nn.Linear(64, 32, bias=False, device="meta")
        linear.weight = large(32, 64)
    return (
        linear,
        inputs,
        lambda batch: reference.linear(format_name, batch, linear.weight, linear.bias, calibration),
    )


def relative_error(seen: Tensor, expected: Tensor) -> float:
    """Return the RMS of `seen - expected` over the RMS of `expected`; 0 for empty tensors."""
    if expected.numel() == 0 or torch.equal(seen.float(), expected.float()):
        return 0.0
    # In double: squares of large fp32 numbers overflow.
    difference = (seen.double() - expected.double()).square().mean().sqrt()
    return float(difference / expected.double().square().mean().sqrt())


def _dtype_name(weight: Tensor) -> str:
    return str(weight.dtype).removeprefix("torch.")


def _pair(value: tuple[int, ...]) -> tuple[int, int]:
    first, second = value
    return (first, second)


def _range_refusal(calibration: Calibration | None) -> str:
    if calibration is None:
        return "it needs an input range from calibration, got None"
    low, high = calibration.low, calibration.high
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        return f"the calibrated input range ({low}, {high}) is not finite and ordered"
    return ""
