"""What the converted modules share: packed weights, tied tensors, and the shape of a Linear."""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn

from autoprec.kernels.registry import FormatModule, Memo

_ENGINE_LOCK = threading.RLock()

T = TypeVar("T")


class Shared(Generic[T]):
    """An immutable value, such as packed weights, that copies of a module share.

    Packed tensors and FBGEMM objects cannot be deep-copied (torch raises, or packs again for another engine).
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared[T]:
        return self


@contextlib.contextmanager
def quantized_engine(name: str) -> Iterator[None]:
    """Set `torch.backends.quantized.engine`, which is process-wide, and put it back."""
    with _ENGINE_LOCK:
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = name
        try:
            yield
        finally:
            torch.backends.quantized.engine = before


def remembered(memo: Memo, weight: Tensor, recipe: str, make: Callable[[], Tensor]) -> Tensor:
    """Return the tensor made of `weight` by `recipe`, made once a memo."""
    key = (ref(weight), recipe)
    if key not in memo:
        memo[key] = make()
    return memo[key]


class FormatLinear(FormatModule):
    """Base of the modules that stand for a Linear: any leading dimensions, the source's dtype in and out.

    Args:
        source: The module to stand for; it is not kept.
        bias_dtype: Number type in which the bias is held.
    """

    bias: Tensor | None

    def __init__(self, source: nn.Linear, bias_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.in_features = source.in_features
        self.out_features = source.out_features
        self._dtype = source.weight.dtype
        bias = None if source.bias is None else source.bias.detach().to(bias_dtype, copy=True)
        self.register_buffer("bias", bias)

    @property
    def weight(self) -> Tensor:
        """The weight as it is held, in the source's dtype; a copy, for code that reads it."""
        return self._dequantized().to(self._dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Return the product for `input` [..., in_features], in its dtype."""
        if input.shape[-1] != self.in_features:
            raise RuntimeError(f"input has {input.shape[-1]} features, expected {self.in_features}")
        shape = (*input.shape[:-1], self.out_features)
        if input.numel() == 0:
            return input.new_empty(shape)
        return self._rows(input.reshape(-1, self.in_features)).view(shape).to(input.dtype)

    def extra_repr(self) -> str:
        """Return what `print(model)` shows."""
        return f"{self.in_features}, {self.out_features}, {self.format_name} by {self.implementation_name}"

    @abstractmethod
    def _rows(self, rows: Tensor) -> Tensor:
        """Compute [rows, in_features] → [rows, out_features], contiguous, in any float dtype."""

    @abstractmethod
    def _dequantized(self) -> Tensor:
        """Return the held weight in a float dtype."""
