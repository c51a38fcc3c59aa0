"""`sparse24`: 2:4 sparsity (Mishra et al., 2021), the two largest of every four weights along the inputs.

Magnitudes are compared as bits: NaN is larger than inf. Of equals the earlier stays.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from autoprec.kernels.ops.operator import define_operator
from autoprec.kernels.quantize import pack_nibbles, unpack_nibbles

BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
"""Number types of weights, and the integers that hold their bits."""


class Sparse24(NamedTuple):
    """A matrix [rows, columns] of which half is kept.

    Attributes:
        values: What is kept, [rows, columns / 2], in the order of the columns.
        indices: uint8 [rows, ceil(columns / 8)]. Every four columns have 4 bits: the places of the two kept
            ones, 2 bits each, the earlier in the lower bits. Two fours share a byte, the earlier in its lower
            half.
    """

    values: Tensor
    indices: Tensor


def sparse24_pack(weight: Tensor) -> Sparse24:
    """Keep the two largest magnitudes of every four columns.

    Args:
        weight: [rows, columns] of float32, bfloat16 or float16, of any strides; columns a multiple of 4.

    Raises:
        ValueError: The shape or the type is none of these.
    """
    if weight.dim() != 2 or weight.shape[1] % 4:
        raise ValueError(f"weight must be [rows, multiple of 4], got {tuple(weight.shape)}")
    if weight.dtype not in BITS:
        raise ValueError(f"weight must be float32, bfloat16 or float16, got {weight.dtype}")
    return Sparse24(*torch.ops.autoprec.sparse24_pack(weight))


def sparse24_unpack(packed: Sparse24) -> Tensor:
    """Return the matrix [rows, columns], zeros where nothing was kept.

    Raises:
        ValueError: A shape, a type, a device or strides are none that `sparse24_pack` makes.
    """
    values, indices = packed
    if values.dim() != 2 or values.shape[1] % 2 or not values.is_contiguous():
        raise ValueError(f"values must be [rows, multiple of 2] and contiguous, got {tuple(values.shape)}")
    if values.dtype not in BITS:
        raise ValueError(f"values must be float32, bfloat16 or float16, got {values.dtype}")
    wanted = (values.shape[0], -(-values.shape[1] // 4))
    if tuple(indices.shape) != wanted or indices.dtype is not torch.uint8 or not indices.is_contiguous():
        raise ValueError(
            f"indices must be uint8 {list(wanted)} and contiguous, got {indices.dtype} {tuple(indices.shape)}"
        )
    if indices.device != values.device:
        raise ValueError(f"indices must be on {values.device} as values, got {indices.device}")
    unpacked: Tensor = torch.ops.autoprec.sparse24_unpack(values, indices)
    return unpacked


def sparse24_operand(packed: Sparse24) -> Tensor:
    """Return the weight as `torch.nn.functional.linear` multiplies by it fastest.

    That is a semi-structured tensor of torch where the processor has sparse matrix instructions for its type
    and shape; else the dense matrix. The former has not been run on a GPU yet. It unpacks: make it once.
    """
    dense = sparse24_unpack(packed)
    rows, columns = dense.shape
    if (
        dense.is_cuda
        and torch.version.hip is None
        and torch.cuda.get_device_capability(dense.device)[0] in (8, 9)
        and dense.dtype in (torch.float16, torch.bfloat16)
        and rows % 32 == 0
        and columns % 64 == 0
    ):
        return torch.sparse.to_sparse_semi_structured(dense)
    return dense


def reference(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `sparse24_pack` in plain torch."""
    rows, columns = weight.shape
    fours = weight.contiguous().view(rows, columns // 4, 4)
    held = BITS[weight.dtype]
    size = fours.view(held) & torch.iinfo(held).max
    order = size.sort(dim=2, descending=True, stable=True).indices
    kept = order[..., :2].sort(dim=2).values
    nibbles = (kept[..., 0] | (kept[..., 1] << 2)).to(torch.uint8)
    return fours.gather(2, kept).view(rows, columns // 2), pack_nibbles(nibbles)


def reference_unpack(values: Tensor, indices: Tensor) -> Tensor:
    """Compute `sparse24_unpack` in plain torch."""
    rows, half = values.shape
    nibbles = unpack_nibbles(indices, half // 2).long()
    kept = torch.stack((nibbles & 3, nibbles >> 2), dim=2)
    fours = values.new_zeros(rows, half // 2, 4)
    return fours.scatter_(2, kept, values.view(rows, half // 2, 2)).view(rows, half * 2)


def _fake(weight: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = weight.shape
    indices = weight.new_empty((rows, (columns + 7) // 8), dtype=torch.uint8)
    return weight.new_empty((rows, columns // 2)), indices


def _fake_unpack(values: Tensor, indices: Tensor) -> Tensor:
    return values.new_empty((values.shape[0], values.shape[1] * 2))


define_operator(
    "sparse24_pack",
    "(Tensor weight) -> (Tensor, Tensor)",
    reference,
    _fake,
    module="sparse24",
)
define_operator(
    "sparse24_unpack",
    "(Tensor values, Tensor indices) -> Tensor",
    reference_unpack,
    _fake_unpack,
    module="sparse24",
    launcher="launch_unpack",
)
