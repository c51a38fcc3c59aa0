"""`weight_only_mm`: a product with weights of 8 or 4 bits that are unpacked inside the kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from autoprec.kernels.formats import GROUP_SIZE
from autoprec.kernels.ops.operator import define_operator, without_gradient
from autoprec.kernels.quantize import GroupedWeight, QuantizedWeight, unpack_nibbles

INPUTS = (torch.bfloat16, torch.float16, torch.float32)


def weight_only_mm(
    inputs: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Return `inputs @ dequantized(weight).T + bias`, summed in float32, in the dtype of `inputs`.

    Args:
        inputs: [M, K], bfloat16, float16 or float32; the matrix unit multiplies it as bfloat16.
        weight: int8 [N, K], or with `zero` uint8 [N, ceil(K / 2)]: 4 bits each, low half first.
        scale: [N] for int8, [N, ceil(K / 64)] for 4 bits; any float dtype.
        zero: The weights that the 4-bit value 8 stands for, [N, ceil(K / 64)].
        bias: [N], or `None`.

    Raises:
        ValueError: Shapes, dtypes or devices do not go together.
    """
    _check(inputs, weight, scale, zero, bias)
    result: Tensor = torch.ops.autoprec.weight_only_mm(inputs, weight, scale, zero, bias)
    return result


def reference(
    inputs: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Compute `weight_only_mm` in plain torch, in float32 over inputs rounded to bfloat16."""
    if zero is None:
        whole = QuantizedWeight(weight, scale).dequantize()
    else:
        whole = GroupedWeight(unpack_nibbles(weight, inputs.shape[1]), scale, zero).dequantize()
    rows = inputs.to(torch.bfloat16).float()
    return F.linear(rows, whole, None if bias is None else bias.float()).to(inputs.dtype)


def _check(inputs: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> None:
    if inputs.dim() != 2 or inputs.dtype not in INPUTS:
        raise ValueError(
            f"inputs must be [M, K] of {', '.join(map(str, INPUTS))}, got {list(inputs.shape)} of "
            f"{inputs.dtype}"
        )
    k = inputs.shape[1]
    kind, width = (torch.int8, k) if zero is None else (torch.uint8, -(-k // 2))
    if weight.dim() != 2 or weight.dtype is not kind or weight.shape[1] != width:
        raise ValueError(
            f"weight must be [N, {width}] of {kind} for inputs of {k} features, got {list(weight.shape)} of "
            f"{weight.dtype}"
        )
    n = weight.shape[0]
    wanted = [n] if zero is None else [n, -(-k // GROUP_SIZE)]
    for name, item in (("scale", scale), ("zero", zero)):
        if item is not None and (list(item.shape) != wanted or not item.is_floating_point()):
            raise ValueError(f"{name} must be {wanted} of floats, got {list(item.shape)} of {item.dtype}")
    if bias is not None and list(bias.shape) != [n]:
        raise ValueError(f"bias must be [{n}], got {list(bias.shape)}")
    places = [item.device for item in (inputs, weight, scale, zero, bias) if item is not None]
    if len(set(places)) > 1:
        raise ValueError(f"everything must be on one device, got {[str(place) for place in places]}")


def _fake(inputs: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> Tensor:
    return inputs.new_empty((inputs.shape[0], weight.shape[0]))


define_operator(
    "weight_only_mm",
    "(Tensor inputs, Tensor weight, Tensor scale, Tensor? zero, Tensor? bias) -> Tensor",
    reference,
    _fake,
)
without_gradient("weight_only_mm")
