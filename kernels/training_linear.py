"""A Linear layer that trains in fp8, with the format of each of its three products chosen apart.

Forward, weights and activations are e4m3; gradients are e5m2, whose range they need (Micikevicius et al., FP8
Formats for Deep Learning, 2022), but e4m3 where blocks of 128 have scales of their own (DeepSeek-V3 Technical
Report, section 3.3.2). Weights and optimizer state stay as they are: each step quantises anew.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from autoprec.kernels.modules import keep_hooks, output_dtype
from autoprec.kernels.ops.quantize import quantize
from autoprec.kernels.ops.scaled_mm import OUTPUTS, scaled_mm

PRODUCT_FORMATS = ("bf16", "fp8_e4m3", "fp8_block")
"""What a product may run in: bfloat16, fp8 with a scale a row, or with one for each 128 elements."""


@dataclass(frozen=True)
class ProductFormats:
    """The formats of a layer's three products, each one of `PRODUCT_FORMATS`.

    Attributes:
        fprop: Of the output, inputs × weight.
        dgrad: Of the inputs' gradient, output gradient × weight.
        wgrad: Of the weight's gradient, output gradient × inputs.
    """

    fprop: str = "fp8_e4m3"
    dgrad: str = "fp8_e4m3"
    wgrad: str = "fp8_e4m3"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value not in PRODUCT_FORMATS:
                raise ValueError(f"{field.name} must be one of {', '.join(PRODUCT_FORMATS)}, got {value!r}")


class TrainingLinear(nn.Linear):
    """A Linear with the parameters of another, the same tensors, and products in chosen formats.

    Checkpoints of one load in the other. The output has the dtype of the input, or autocast's.

    Args:
        source: The layer to stand for; it keeps its parameters, which are shared.
        formats: The formats of the three products.

    Raises:
        ValueError: `source` is no plain Linear.
    """

    def __init__(self, source: nn.Linear, formats: ProductFormats) -> None:
        if not isinstance(formats, ProductFormats):
            raise ValueError(f"formats must be ProductFormats, got {formats!r}")
        if type(source).forward is not nn.Linear.forward or "forward" in vars(source):
            raise ValueError(f"source must compute what nn.Linear does, got {type(source).__name__}")
        if "weight" not in source._parameters:
            raise ValueError("the weight of source is computed from others; remove its parametrization first")
        super().__init__(source.in_features, source.out_features, source.bias is not None, device="meta")
        self.weight = source.weight
        self.bias = source.bias
        self.formats = formats
        self.train(source.training)
        keep_hooks(source, self)

    def forward(self, input: Tensor) -> Tensor:
        """Return the product for `input` [..., in_features] as [..., out_features]."""
        if input.shape[-1] != self.in_features:
            raise ValueError(f"input has {input.shape[-1]} features, expected {self.in_features}")
        dtype = output_dtype(input)
        if dtype not in OUTPUTS:
            raise ValueError(f"input must be one of {', '.join(map(str, OUTPUTS))}, got {dtype}")
        rows = input.reshape(-1, self.in_features)
        result: Tensor = _Products.apply(rows, self.weight, self.bias, self.formats, dtype)  # type: ignore[no-untyped-call]
        return result.view(*input.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """Return what `print(model)` shows."""
        formats = self.formats
        return f"{super().extra_repr()}, {formats.fprop}, {formats.dgrad}, {formats.wgrad}"


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        formats: ProductFormats,
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.formats, ctx.bias_dtype = formats, None if bias is None else bias.dtype
        return product(rows, weight, formats.fprop, dtype, bias=bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        formats = ctx.formats
        for_rows = for_weight = for_bias = None
        if ctx.needs_input_grad[0]:
            for_rows = product(gradient, weight.t(), formats.dgrad, rows.dtype, backward=True)
        if ctx.needs_input_grad[1]:
            for_weight = product(
                gradient.t(), rows.t(), formats.wgrad, weight.dtype, backward=True, square=False
            )
        if ctx.needs_input_grad[2]:
            for_bias = gradient.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
        return for_rows, for_weight, for_bias, None, None


def product(
    left: Tensor,
    right: Tensor,
    format_name: str,
    dtype: torch.dtype,
    *,
    bias: Tensor | None = None,
    backward: bool = False,
    square: bool = True,
) -> Tensor:
    """Return `left @ right.T + bias` in one of `PRODUCT_FORMATS`.

    Args:
        left: [M, K], activations or, with `backward`, gradients; of any strides.
        right: [N, K].
        format_name: The format.
        dtype: Of the result: bfloat16, float16 or float32.
        bias: [N], or `None`.
        backward: Whether `left` are gradients.
        square: Whether `right` is a weight, with blocks of 128 × 128, rather than activations with 1 × 128.
    """
    if format_name == "bf16":
        narrow = torch.bfloat16
        added = None if bias is None else bias.to(narrow)
        return nn.functional.linear(left.to(narrow), right.to(narrow), added).to(dtype)
    block = format_name == "fp8_block"
    kind = torch.float8_e5m2 if backward and not block else torch.float8_e4m3fn
    return scaled_mm(
        quantize(left, kind, "group" if block else "row"),
        quantize(right, torch.float8_e4m3fn, ("block" if square else "group") if block else "row"),
        bias,
        out_dtype=dtype,
    )
