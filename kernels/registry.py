"""Which implementation computes which format, and what this device can do for a shape.

An *implementation* converts one module into a module that computes a format one way. Several
implementations of one format have the same numerics within `reference`'s tolerance and differ in speed.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, MutableMapping

import torch
from torch import nn

from autoprec.errors import ConversionError
from autoprec.kernels.calibration import Calibration
from autoprec.kernels.formats import FORMATS


class Operation(enum.StrEnum):
    """What a tunable module computes."""

    LINEAR = "linear"
    CONV2D = "conv2d"
    EMBEDDING = "embedding"


class Level(enum.StrEnum):
    """How far a device supports a format for a shape."""

    NATIVE = "native"
    EMULATED = "emulated"
    REFUSED = "refused"


@dataclasses.dataclass(frozen=True, slots=True)
class Support:
    """A level and, unless it is native, the sentence that says why."""

    level: Level
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class OpShape:
    """The static shape of a module and of the input that it was seen with.

    Attributes:
        operation: What is computed.
        rows: Product of the input's leading dimensions: rows of a linear, batch × output pixels of a
            convolution, looked-up indices of an embedding.
        inputs: Input features or channels; the number of rows of an embedding's table.
        outputs: Output features or channels; the width of an embedding.
        bias: Whether a bias is added.
        kernel: Kernel height and width; (1, 1) unless a convolution.
        stride: Stride of a convolution.
        padding: Padding of a convolution, as numbers.
        dilation: Dilation of a convolution.
        groups: Groups of a convolution.
        dtype: Weight dtype, without the `torch.` prefix.
    """

    operation: Operation
    rows: int
    inputs: int
    outputs: int
    bias: bool
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    dtype: str = "float32"


Memo = MutableMapping[tuple[object, ...], torch.Tensor]
"""Plain quantised tensors made during one `apply_plan`.

Keyed by (weak reference to the source weight, recipe). Not by `id`: an address may be used again once a
module was replaced.

Tied modules find each other's tensors here, so that a tied weight stays one tensor where the
implementation holds it in plain storage.
"""


class FormatModule(nn.Module):
    """Base of every module that computes a format in place of the user's.

    Subclasses keep the attributes of the replaced module that other code reads (`in_features`, ...).
    They take and return the dtype the replaced module took and returned.

    Attributes:
        format_name: A key of `FORMATS`.
        implementation_name: The implementation that made it.
    """

    format_name: str
    implementation_name: str

    def held_tensors(self) -> list[torch.Tensor]:
        """Return every tensor held that is not a parameter or buffer (packed weights, unpacked views).

        `held_bytes` counts these and the parameters and buffers once each by storage.
        """
        return []

    def opaque_bytes(self) -> int:
        """Return bytes held in objects that are not tensors (FBGEMM packed weights)."""
        return 0


class Implementation(ABC):
    """One way to compute one format for one operation on one kind of device.

    Stateless and shared between threads. Register with `register`.
    """

    operation: Operation
    format: str
    name: str

    @abstractmethod
    def support(self, shape: OpShape, device: torch.device) -> Support:
        """Say whether this runs for `shape` on `device`, from what the device really has."""

    @abstractmethod
    def convert(self, module: nn.Module, calibration: Calibration | None, memo: Memo) -> nn.Module:
        """Return a module that computes `module` in this format; `module` itself is left as it is.

        Returns `module` unchanged where the format is what the module is already.

        Raises:
            ConversionError: The module has a shape, dtype or setting that is refused.
        """


_IMPLEMENTATIONS: dict[tuple[Operation, str, str], Implementation] = {}
_SUITES = ("linear_float", "linear_int8", "linear_weight_only", "linear_triton", "conv2d", "embedding")


def register(implementation: Implementation) -> None:
    """Add an implementation. Its name is unique within operation and format."""
    key = (implementation.operation, implementation.format, implementation.name)
    if implementation.format not in FORMATS:
        raise ValueError(f"implementation {key} computes no known format")
    if key in _IMPLEMENTATIONS:
        raise ValueError(f"implementation {key} is registered twice")
    _IMPLEMENTATIONS[key] = implementation


@functools.cache
def _load_suites() -> None:
    for suite in _SUITES:
        importlib.import_module(f"autoprec.kernels.{suite}")


def implementations(operation: Operation, format_name: str | None = None) -> tuple[Implementation, ...]:
    """Return the implementations of an operation, of one format or of all, in registration order."""
    _load_suites()
    return tuple(
        item
        for (op, fmt, _), item in _IMPLEMENTATIONS.items()
        if op is operation and format_name in (None, fmt)
    )


def implementation(operation: Operation, format_name: str, name: str) -> Implementation:
    """Return one implementation by name.

    Raises:
        ConversionError: There is none of that name.
    """
    _load_suites()
    try:
        return _IMPLEMENTATIONS[operation, format_name, name]
    except KeyError:
        known = ", ".join(item.name for item in implementations(operation, format_name)) or "none"
        raise ConversionError(
            f"no implementation {name!r} of {format_name!r} for {operation.value}; known: {known}"
        ) from None


def feasible(operation: Operation, shapes: Iterable[OpShape], device: torch.device) -> dict[str, Support]:
    """Return for every format the best support that one implementation gives for all `shapes`.

    A format without an implementation is refused and says so. A format that stands in for another is
    refused where the other is native: it would be coarser and no faster.
    """
    seen = tuple(shapes)
    answer: dict[str, Support] = {}
    for name in FORMATS:
        found = [
            worst(item.support(shape, device) for shape in seen) for item in implementations(operation, name)
        ]
        missing = Support(Level.REFUSED, f"there is no {name} implementation for {operation.value}")
        answer[name] = max(found, key=lambda support: _RANK[support.level], default=missing)
    for name, fmt in FORMATS.items():
        if (
            fmt.stands_in_for
            and answer[name].level is Level.NATIVE
            and answer[fmt.stands_in_for].level is Level.NATIVE
        ):
            reason = f"{fmt.stands_in_for} runs here with all 8 bits, by the same kernels"
            answer[name] = Support(Level.REFUSED, reason)
    return answer


_RANK = {Level.REFUSED: 0, Level.EMULATED: 1, Level.NATIVE: 2}


def worst(supports: Iterable[Support]) -> Support:
    """Return the lowest of several levels of support, the first of equals; native where there is none."""
    return min(supports, key=lambda support: _RANK[support.level], default=Support(Level.NATIVE))


def held_bytes(model: nn.Module, beside: Iterable[torch.Tensor] = ()) -> int:
    """Return the bytes a model holds in parameters, buffers and packed weights, each storage once.

    Args:
        model: The model.
        beside: Tensors that are held outside the model's modules.
    """
    storages: dict[tuple[int, str], int] = {}
    opaque = 0
    tensors = [*model.parameters(), *model.buffers(), *beside]
    for module in model.modules():
        if isinstance(module, FormatModule):
            tensors += module.held_tensors()
            opaque += module.opaque_bytes()
    for tensor in tensors:
        if tensor.is_mkldnn:
            storages[id(tensor), "mkldnn"] = int(torch.ops.mkldnn._nbytes(tensor)) if tensor.numel() else 0
        else:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr(), str(tensor.device)] = storage.nbytes()
    return sum(storages.values()) + opaque
