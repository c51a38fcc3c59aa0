"""One operator for every kernel that `torch.compile` cannot look into.

Dynamo breaks the graph at objects that hold packed weights and at scales that are read as Python numbers,
and inductor fails on layouts that oneDNN packed, or takes the number of images for fixed. Each of a model's
layers would then be compiled in pieces of its own, and beyond the eighth not at all. With this operator the
whole model stays one graph that calls the kernel as PyTorch does.
"""

from __future__ import annotations

import functools
import itertools
import threading
from abc import abstractmethod
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from autoprec.kernels.registry import FormatModule

_MODULES: WeakValueDictionary[int, OpaqueModule] = WeakValueDictionary()
"""What the operator computes with: a graph holds numbers and tensors only."""
_LOCK = threading.Lock()


class OpaqueModule(FormatModule):
    """Base of modules whose kernel may be opaque to a compiler.

    Attributes:
        handle: What a graph calls this module's kernel by; none where a compiler can look into it.
    """

    handle: int | None = None

    def hide(self) -> None:
        """Let compiled graphs call the kernel as a whole."""
        _register()
        # The smallest free number: a plan that is built again has the same graph, which inductor then finds
        # in its cache.
        with _LOCK:
            self.handle = next(number for number in itertools.count() if number not in _MODULES)
            _MODULES[self.handle] = self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if self.handle is not None:  # a copy may outlive the module that it was made from
            self.hide()

    @abstractmethod
    def compute_opaque(self, inputs: Tensor) -> Tensor:
        """Run the kernel, in any float dtype and memory layout."""

    @abstractmethod
    def result_like(self, inputs: Tensor) -> Tensor:
        """Return an empty tensor of the shape of the result for `inputs`, in their dtype, contiguous."""


def call_opaque(module: OpaqueModule, inputs: Tensor) -> Tensor:
    """Return what the module's kernel gives, in the dtype of `inputs`, by an operator that compilers keep."""
    result: Tensor = torch.ops.autoprec.opaque_kernel(inputs, module.handle)
    return result


def _run(inputs: Tensor, handle: int) -> Tensor:
    # The layout is the one that `result_like` promised to the compiler.
    return _MODULES[handle].compute_opaque(inputs).to(inputs.dtype).contiguous()


@functools.cache
def _register() -> None:
    """Give the operator its kernel. That imports dynamo, for a second, so it waits until there is a need."""
    # Dynamo would trace into it again when a compiled graph calls it.
    kernel = torch.compiler.disable(_run)  # type: ignore[no-untyped-call]
    torch.library.impl("autoprec::opaque_kernel", "CPU", kernel)


def _shape(inputs: Tensor, handle: int) -> Tensor:
    return _MODULES[handle].result_like(inputs)


torch.library.define(
    "autoprec::opaque_kernel", "(Tensor inputs, int handle) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)
torch.library.register_fake("autoprec::opaque_kernel", _shape)
