"""Embeddings held in narrow formats; rows come out in the dtype of the table they replace.

An embedding has no arithmetic, so `fp16_weight` is `fp16` here; both exist so that an embedding tied to an
output head can follow whichever suits the head. Formats of activations (`int8_dynamic`, ...) have no meaning.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoprec.kernels.calibration import Calibration
from autoprec.kernels.checked import CheckedImplementation
from autoprec.kernels.linear_float import DTYPES, narrowed
from autoprec.kernels.linear_int8 import shared_int8
from autoprec.kernels.linear_weight_only import shared_int4
from autoprec.kernels.modules import HeldWeight
from autoprec.kernels.quantize import GroupedWeight, QuantizedWeight, unpack_nibbles
from autoprec.kernels.registry import FormatModule, Memo, Operation, register


class FormatEmbedding(FormatModule):
    """Base of the modules that stand for an Embedding. `padding_idx` only steers gradients and is kept."""

    max_norm = None
    norm_type = 2.0
    scale_grad_by_freq = False
    sparse = False

    def __init__(self, source: nn.Embedding) -> None:
        super().__init__()
        self.num_embeddings = source.num_embeddings
        self.embedding_dim = source.embedding_dim
        self.padding_idx = source.padding_idx
        self._dtype = source.weight.dtype

    @property
    def weight(self) -> Tensor:
        """The table as it is held, in the source's dtype; a copy, for code that reads it."""
        every = torch.arange(self.num_embeddings, device=next(self.buffers()).device)
        return self._lookup(every).to(self._dtype).as_subclass(HeldWeight)

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows at `input` [...] as [..., embedding_dim]."""
        return self._lookup(input).to(self._dtype)

    def extra_repr(self) -> str:
        """Return what `print(model)` shows."""
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, {self.format_name} by {self.implementation_name}"
        )

    @abstractmethod
    def _lookup(self, indices: Tensor) -> Tensor:
        """Return rows [..., embedding_dim] in any float dtype."""


class CastEmbedding(FormatEmbedding):
    """A table in another float dtype."""

    stored: Tensor

    def __init__(self, source: nn.Embedding, stored: Tensor) -> None:
        super().__init__(source)
        self.register_buffer("stored", stored)

    def _lookup(self, indices: Tensor) -> Tensor:
        return F.embedding(indices, self.stored)


class Int8Embedding(FormatEmbedding):
    """int8 rows with a scale each."""

    values: Tensor
    scale: Tensor

    def __init__(self, source: nn.Embedding, weight: QuantizedWeight) -> None:
        super().__init__(source)
        self.register_buffer("values", weight.values)
        self.register_buffer("scale", weight.scale)

    def _lookup(self, indices: Tensor) -> Tensor:
        flat = indices.reshape(-1)
        rows = QuantizedWeight(_gather(self.values, flat), _gather(self.scale, flat))
        return rows.dequantize().view(*indices.shape, self.embedding_dim)


class Int4Embedding(FormatEmbedding):
    """4-bit rows, two values to a byte, with a scale and a zero for each 64 values."""

    packed: Tensor
    scale: Tensor
    zero: Tensor

    def __init__(self, source: nn.Embedding, packed: Tensor, scale: Tensor, zero: Tensor) -> None:
        super().__init__(source)
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", zero)

    def _lookup(self, indices: Tensor) -> Tensor:
        flat = indices.reshape(-1)
        values = unpack_nibbles(_gather(self.packed, flat), self.embedding_dim)
        rows = GroupedWeight(values, _gather(self.scale, flat), _gather(self.zero, flat)).dequantize()
        return rows.view(*indices.shape, self.embedding_dim)


def _gather(table: Tensor, indices: Tensor) -> Tensor:
    """Return `table[indices]`, refusing negative indices as an Embedding does."""
    return table.index_select(0, indices)


class _Embedding(CheckedImplementation):
    operation = Operation.EMBEDDING
    name = "aten"
    devices = ("cpu", "cuda")

    def __init__(self, format_name: str) -> None:
        self.format = format_name

    def _module_refusal(self, module: nn.Module) -> str:
        reason = super()._module_refusal(module)
        if not reason and isinstance(module, nn.Embedding):
            if module.max_norm is not None:
                return f"max_norm={module.max_norm} changes the table in every lookup"
            if module.sparse:
                return "sparse=True is for gradients, which converted tables do not have"
        return reason


class _Cast(_Embedding):
    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        dtype = DTYPES[self.format]
        if module.weight.dtype is dtype and self.format != "fp16_weight":
            return module  # type: ignore[no-any-return]
        return CastEmbedding(module, narrowed(module.weight, dtype, memo))


class _Int8(_Embedding):
    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        return Int8Embedding(module, shared_int8(module.weight, memo, torch.bfloat16))


class _Int4(_Embedding):
    def _convert(self, module: Any, calibration: Calibration | None, memo: Memo) -> nn.Module:
        return Int4Embedding(module, *shared_int4(module.weight, memo))


for _item in (
    *(_Cast(name) for name in DTYPES),
    _Int8("int8_weight_only"),
    _Int4("int4_weight_only"),
):
    register(_item)
