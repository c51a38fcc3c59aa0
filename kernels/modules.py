"""What the converted modules share: packed weights, tied tensors, and the shape of a Linear."""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn

from autoprec.kernels.opaque import OpaqueModule, call_opaque
from autoprec.kernels.registry import Memo

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


class HeldWeight(Tensor):
    """What `weight` of a converted module returns: a plain tensor to all who read it.

    That it is a subclass turns off torch's fused paths (of `nn.TransformerEncoderLayer`, for one), which read
    the weights of a Linear instead of calling it, and so would not compute in its format.
    """

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run `func` as on plain tensors, and return plain tensors."""
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def without_fused_paths() -> Iterator[None]:
    """Let torch's transformer layers call the modules that they hold, for as long as those have hooks.

    A layer whose modules have hooks does so by itself, but `nn.TransformerEncoder` does not look and hands it
    what only the fused path takes.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def compute(module: OpaqueModule, inputs: Tensor, kernel: Callable[[Tensor], Tensor]) -> Tensor:
    """Return `kernel(inputs)`; a backward pass through it raises rather than returning wrong gradients.

    Most kernels here have no gradient, and some would silently give none.
    """
    if module.handle is not None and torch.compiler.is_compiling():
        kernel = partial(call_opaque, module)
    if inputs.requires_grad and torch.is_grad_enabled():
        result: Tensor = _WithoutGradient.apply(inputs, module, kernel)  # type: ignore[no-untyped-call]
        return result
    return kernel(inputs)


class _WithoutGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, module: OpaqueModule, kernel: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.name = f"{module.format_name} by {module.implementation_name}"
        return kernel(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(f"{ctx.name} has no gradient: it is for inference; train before converting")


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `tensor.to(dtype)`, at no cost where it has that dtype: `to` takes 1 µs to find that out."""
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def output_dtype(inputs: Tensor) -> torch.dtype:
    """Return the dtype in which a Linear gives its result: autocast's, or else that of its inputs."""
    kind = inputs.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return inputs.dtype


def keep_hooks(source: nn.Module, converted: nn.Module) -> None:
    """Give the converted module the source's forward hooks: dropping them would change the model silently."""
    for name in (
        "_forward_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
    ):
        getattr(converted, name).update(getattr(source, name))


class WeightedModule(OpaqueModule):
    """Base of the modules that hold a weight and a bias in the place of a Linear's or a Conv2d's.

    Args:
        source: The module to stand for; it is not kept.
        bias_dtype: Number type in which the bias is held.
    """

    bias: Tensor | None

    def __init__(self, source: nn.Linear | nn.Conv2d, bias_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self._dtype = source.weight.dtype
        bias = None if source.bias is None else source.bias.detach().to(bias_dtype, copy=True)
        self.register_buffer("bias", bias)

    @property
    def weight(self) -> Tensor:
        """The weight as it is held, in the source's dtype; a copy, for code that reads it."""
        return self._dequantized().to(self._dtype).as_subclass(HeldWeight)

    @abstractmethod
    def _dequantized(self) -> Tensor:
        """Return the held weight in a float dtype."""


class FormatLinear(WeightedModule):
    """Base of the modules that stand for a Linear: any leading dimensions, the source's dtype in and out."""

    def __init__(self, source: nn.Linear, bias_dtype: torch.dtype = torch.float32) -> None:
        super().__init__(source, bias_dtype)
        self.in_features = source.in_features
        self.out_features = source.out_features

    def forward(self, input: Tensor) -> Tensor:
        """Return the product for `input` [..., in_features], in its dtype."""
        if input.shape[-1] != self.in_features:
            raise RuntimeError(f"input has {input.shape[-1]} features, expected {self.in_features}")
        if input.numel() == 0:
            return input.new_empty(*input.shape[:-1], self.out_features)
        # At one row a kernel takes 10 µs: what is already right is not touched, which saves 2 of them.
        flat = input.dim() == 2
        rows = (input if flat else input.reshape(-1, self.in_features)).contiguous()
        result = compute(self, rows, self._rows)
        if not flat:
            result = result.view(*input.shape[:-1], self.out_features)
        return cast(result, input.dtype)

    def extra_repr(self) -> str:
        """Return what `print(model)` shows."""
        return f"{self.in_features}, {self.out_features}, {self.format_name} by {self.implementation_name}"

    @abstractmethod
    def _rows(self, rows: Tensor) -> Tensor:
        """Compute contiguous [rows, in_features] → contiguous [rows, out_features], in any float dtype."""

    def compute_opaque(self, inputs: Tensor) -> Tensor:
        """See `OpaqueModule.compute_opaque`."""
        return self._rows(inputs)

    def result_like(self, inputs: Tensor) -> Tensor:
        """See `OpaqueModule.result_like`."""
        return inputs.new_empty(inputs.shape[0], self.out_features)
