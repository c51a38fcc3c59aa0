"""`fused_norm_quantize`: RMSNorm or LayerNorm, quantised as it leaves, so that the norm is never in memory.

The norm is computed in float32 and is not rounded to the type of the inputs on its way to the quantiser.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autoprec.kernels.ops import quantize
from autoprec.kernels.ops.operator import define_operator, without_gradient
from autoprec.kernels.ops.quantize import KINDS, Quantized, scale_shape

NORMS = ("rms", "layer")
"""`rms` divides by the root of the mean square; `layer` takes the mean away first."""
GRANULARITIES = ("row", "group")
"""What shares a scale: a row, or 128 elements of a row."""
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def fused_norm_quantize(
    inputs: Tensor,
    weight: Tensor,
    dtype: torch.dtype,
    norm: str = "rms",
    granularity: str = "row",
    *,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Quantized:
    """Normalise the last dimension and quantise the result.

    Args:
        inputs: [..., columns] of float32, bfloat16 or float16, of any strides.
        weight: [columns] that the norm is multiplied by.
        dtype: `torch.int8`, `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        norm: One of `NORMS`.
        granularity: One of `GRANULARITIES`.
        bias: [columns] that is added to it.
        eps: Added to the mean square; above 0.

    Returns:
        A matrix [rows, columns], the leading dimensions being one, as `scaled_mm` takes it.

    Raises:
        ValueError: A shape, a dtype, a device or a choice is none of these.
    """
    _check(inputs, weight, dtype, norm, granularity, bias, eps)
    rows = inputs.reshape(-1, inputs.shape[-1]) if inputs.numel() else inputs.new_empty(_rows(inputs))
    made = torch.ops.autoprec.fused_norm_quantize(rows, weight, bias, dtype, norm, granularity, eps)
    return Quantized(*made)


def reference(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    norm: str,
    granularity: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `fused_norm_quantize` of a matrix in plain torch."""
    numbers = inputs.float()
    if norm == "layer":
        numbers = numbers - numbers.mean(1, keepdim=True)
    normed = numbers * torch.rsqrt(numbers.square().mean(1, keepdim=True) + eps) * weight.float()
    if bias is not None:
        normed = normed + bias.float()
    return quantize.reference(normed, dtype, granularity, False, None)


def _rows(inputs: Tensor) -> tuple[int, int]:
    return inputs.shape[:-1].numel(), inputs.shape[-1]


def _check(
    inputs: Tensor,
    weight: Tensor,
    dtype: torch.dtype,
    norm: str,
    granularity: str,
    bias: Tensor | None,
    eps: float,
) -> None:
    if inputs.dim() < 1:
        raise ValueError(f"inputs must be [..., columns], got {tuple(inputs.shape)}")
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector is not None and tuple(vector.shape) != (inputs.shape[-1],):
            raise ValueError(f"{name} must be [{inputs.shape[-1]}] as inputs, got {tuple(vector.shape)}")
        if vector is not None and vector.device != inputs.device:
            raise ValueError(f"{name} must be on {inputs.device} as inputs, got {vector.device}")
    for name, tensor in (("inputs", inputs), ("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype not in _FLOATS:
            raise ValueError(f"{name} must be float32, bfloat16 or float16, got {tensor.dtype}")
    if dtype not in KINDS:
        raise ValueError(f"dtype must be one of {', '.join(map(str, KINDS))}, got {dtype}")
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")
    if granularity not in GRANULARITIES:
        raise ValueError(f"granularity must be one of {', '.join(GRANULARITIES)}, got {granularity!r}")
    if not eps > 0:
        raise ValueError(f"eps must be above 0, got {eps}")


def _fake(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    norm: str,
    granularity: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    scales = scale_shape(inputs.shape, granularity)
    return (
        inputs.new_empty(inputs.shape, dtype=dtype),
        inputs.new_empty(scales, dtype=torch.float32),
        inputs.new_empty(scales, dtype=torch.float32),
    )


define_operator(
    "fused_norm_quantize",
    "(Tensor inputs, Tensor weight, Tensor? bias, ScalarType dtype, str norm, str granularity, float eps)"
    " -> (Tensor, Tensor, Tensor)",
    reference,
    _fake,
)
without_gradient("fused_norm_quantize")
