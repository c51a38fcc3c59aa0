"""`scaled_mm`: the product of two quantised matrices, with scales, bias and activation in one kernel.

fp8 products are summed in float32 and promoted after each 128 elements: Hopper's matrix unit keeps about 14
bits of a running sum, so that long rows lose what short ones keep (DeepSeek-V3 Technical Report, section
3.3.2). int8 products are summed in int32, exactly.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from autoprec.kernels.formats import BLOCK_SIZE
from autoprec.kernels.ops.operator import define_operator, without_gradient
from autoprec.kernels.ops.quantize import KINDS, Quantized, spread

ACTIVATIONS = ("none", "relu", "gelu", "silu")
"""What may follow the bias; `gelu` is the exact one, by erf."""
OUTPUTS = (torch.bfloat16, torch.float16, torch.float32)
LONGEST_WHOLE = 131_071
"""Products of two int8, 2^14 at most, that int32 can sum."""


def scaled_mm(
    left: Quantized,
    right: Quantized,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    out_dtype: torch.dtype = torch.bfloat16,
    fast: bool = False,
) -> Tensor:
    """Return `activation(left @ right.T + bias)`.

    Args:
        left: Values [M, K] of fp8 or int8; scales for the tensor, rows, or groups of 128 along K.
        right: Values [N, K], as `nn.Linear` has its weight; scales as of `left`, or blocks of 128 × 128. fp8
            of one kind may meet fp8 of the other.
        bias: [N] of any float dtype, or `None`.
        activation: One of `ACTIVATIONS`.
        out_dtype: bfloat16, float16 or float32.
        fast: Let the matrix unit keep the running sum of fp8 products by itself: faster, fewer bits. Has no
            effect where scales change along K, whose sums are promoted in any case.

    Raises:
        ValueError: Shapes, dtypes, devices or scales do not go together.
    """
    _check(left, right, bias, activation, out_dtype)
    result: Tensor = torch.ops.autoprec.scaled_mm(
        left.values, left.scale, right.values, right.scale, bias, activation, out_dtype, fast
    )
    return result


def activate(sums: Tensor, activation: str) -> Tensor:
    """Apply one of `ACTIVATIONS`."""
    if activation == "relu":
        return sums.relu()
    if activation == "gelu":
        return F.gelu(sums)
    return F.silu(sums) if activation == "silu" else sums


def reference(
    left: Tensor,
    left_scale: Tensor,
    right: Tensor,
    right_scale: Tensor,
    bias: Tensor | None,
    activation: str,
    out_dtype: torch.dtype,
    fast: bool,
) -> Tensor:
    """Compute `scaled_mm` in plain torch: in float32 over dequantised operands."""
    sums = F.linear(
        left.float() * spread(left_scale, left.shape),
        right.float() * spread(right_scale, right.shape),
        None if bias is None else bias.float(),
    )
    return activate(sums, activation).to(out_dtype)


def _check(
    left: Quantized, right: Quantized, bias: Tensor | None, activation: str, out_dtype: torch.dtype
) -> None:
    for name, item in (("left", left), ("right", right)):
        if item.values.dim() != 2 or item.scale.dim() != 2:
            raise ValueError(
                f"{name} must have values and scales of two dimensions, got shapes "
                f"{tuple(item.values.shape)} and {tuple(item.scale.shape)}"
            )
        if item.values.dtype not in KINDS:
            raise ValueError(f"{name} must hold one of {', '.join(map(str, KINDS))}, got {item.values.dtype}")
        if item.scale.dtype is not torch.float32:
            raise ValueError(f"scales of {name} must be float32, got {item.scale.dtype}")
        rows, columns = item.values.shape
        blocks = -(-columns // BLOCK_SIZE)
        tall = -(-rows // BLOCK_SIZE)
        if item.scale.shape[0] not in (1, rows, tall) or item.scale.shape[1] not in (1, blocks):
            raise ValueError(
                f"scales of {name} {rows} × {columns} must be 1, {rows} or {tall} by 1 or {blocks}, "
                f"got {tuple(item.scale.shape)}"
            )
    if left.values.shape[1] != right.values.shape[1]:
        raise ValueError(
            f"left and right must share the length of their rows, got {left.values.shape[1]} and "
            f"{right.values.shape[1]}"
        )
    if (left.values.dtype is torch.int8) != (right.values.dtype is torch.int8):
        raise ValueError(
            f"left and right must both be int8 or both fp8, got {left.values.dtype} and {right.values.dtype}"
        )
    if left.values.dtype is torch.int8 and left.values.shape[1] > LONGEST_WHOLE:
        raise ValueError(
            f"rows of int8 must have at most {LONGEST_WHOLE} elements, so that int32 holds their sum, got "
            f"{left.values.shape[1]}; use fp8 or split the product"
        )
    if bias is not None and bias.shape != (right.values.shape[0],):
        raise ValueError(f"bias must be [{right.values.shape[0]}], got {list(bias.shape)}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    if out_dtype not in OUTPUTS:
        raise ValueError(f"out_dtype must be one of {', '.join(map(str, OUTPUTS))}, got {out_dtype}")
    places = [left.values, left.scale, right.values, right.scale, *([] if bias is None else [bias])]
    if len({item.device for item in places}) > 1:
        raise ValueError(f"everything must be on one device, got {[str(item.device) for item in places]}")


def _fake(
    left: Tensor,
    left_scale: Tensor,
    right: Tensor,
    right_scale: Tensor,
    bias: Tensor | None,
    activation: str,
    out_dtype: torch.dtype,
    fast: bool,
) -> Tensor:
    return left.new_empty((left.shape[0], right.shape[0]), dtype=out_dtype)


define_operator(
    "scaled_mm",
    "(Tensor left, Tensor left_scale, Tensor right, Tensor right_scale, Tensor? bias, str activation,"
    " ScalarType out_dtype, bool fast) -> Tensor",
    reference,
    _fake,
)
without_gradient("scaled_mm")
