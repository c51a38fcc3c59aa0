"""How a workload calls its model: what a runtime that works on an exported graph has to know.

Everything that `run` and `quality` pass to the model is watched once, on the model as it came: which
arguments are tensors, which of their dimensions vary, what the outputs look like.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from autoprec.errors import RuntimeRefusedError

KEPT = 4
"""Calls whose outputs are kept, to compare an exported graph with."""
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Call:
    """One call of the model.

    Attributes:
        tensors: Argument name to tensor.
        output: What the model returned.
    """

    tensors: dict[str, torch.Tensor]
    output: Any


@dataclass(frozen=True)
class CallSignature:
    """How a model is called.

    Attributes:
        signature: Of the model's `forward`.
        names: Names of the tensor arguments, in the order of the signature.
        constants: Arguments that are no tensors; the same in every call.
        varying: For each tensor argument, the dimensions that differ between calls.
        calls: Some of the calls, distinct in shape.
        outputs: The structure of what the model returns, as `torch.utils._pytree` describes it.
        tensor_leaves: Which leaves of the outputs are tensors.
    """

    signature: inspect.Signature
    names: tuple[str, ...]
    constants: dict[str, Any]
    varying: dict[str, tuple[int, ...]]
    calls: tuple[Call, ...]
    outputs: Any
    tensor_leaves: tuple[bool, ...]

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Return the tensor arguments of a call by name.

        Raises:
            RuntimeRefusedError: The call differs from those that were watched.
        """
        given = kwargs if not args else _bound(self.signature, args, kwargs)
        tensors = {name: given[name] for name in self.names if isinstance(given.get(name), torch.Tensor)}
        others = {name: value for name, value in given.items() if name not in tensors}
        if len(tensors) != len(self.names) or others != self.constants:
            raise RuntimeRefusedError(
                f"the model is called with {sorted(given)}; the exported graph takes {', '.join(self.names)}"
            )
        return tensors

    @property
    def largest(self) -> Call:
        """The call whose varying dimensions are the longest: dimensions of 1 would be taken for fixed."""

        def key(call: Call) -> tuple[int, int]:
            sizes = [call.tensors[name].shape[d] for name, dims in self.varying.items() for d in dims]
            return min(sizes, default=0), sum(sizes)

        return max(self.calls, key=key)


def watch_calls(model: nn.Module, exercise: Callable[[], object]) -> CallSignature:
    """Watch how `exercise` calls a model.

    Raises:
        RuntimeRefusedError: It never calls it, calls it in two ways, or with what is no tensor.
    """
    signature = inspect.signature(model.forward)
    seen: dict[tuple[object, ...], Call] = {}
    kinds: list[dict[str, Any]] = []
    shapes: dict[str, set[torch.Size]] = {}

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = _bound(signature, args, kwargs)
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        others = {name: value for name, value in given.items() if name not in tensors}
        if not kinds:
            kinds.append({"names": tuple(tensors), "constants": others})
        odd = [name for name, value in others.items() if not isinstance(value, _PLAIN)]
        if odd:
            raise RuntimeRefusedError(
                f"the model is called with {odd[0]}, a {type(others[odd[0]]).__name__}; "
                "an exported graph takes tensors"
            )
        if kinds[0] != {"names": tuple(tensors), "constants": others}:
            raise RuntimeRefusedError(
                f"the model is called in two ways, with {', '.join(kinds[0]['names'])} and with "
                f"{', '.join(tensors)}; an exported graph has one"
            )
        for name, tensor in tensors.items():
            shapes.setdefault(name, set()).add(tensor.shape)
        key = tuple(tensor.shape for tensor in tensors.values())
        if key not in seen and len(seen) < 64:
            kept = output if len(seen) < KEPT else None
            seen[key] = Call({name: tensor.detach().clone() for name, tensor in tensors.items()}, kept)

    handle = model.register_forward_hook(hook, with_kwargs=True)
    try:
        exercise()
    finally:
        handle.remove()
    if not kinds or not kinds[0]["names"]:
        raise RuntimeRefusedError("the model itself is never called with a tensor, only parts of it")
    varying: dict[str, tuple[int, ...]] = {}
    for name, found in shapes.items():
        if len({len(shape) for shape in found}) > 1:
            raise RuntimeRefusedError(f"{name} has {len(found)} shapes of different rank")
        sizes = [{shape[d] for shape in found} for d in range(len(next(iter(found))))]
        varying[name] = tuple(d for d, values in enumerate(sizes) if len(values) > 1)
    calls = tuple(seen.values())
    leaves, structure = pytree.tree_flatten(calls[0].output)
    return CallSignature(
        signature, kinds[0]["names"], kinds[0]["constants"], varying, calls, structure,
        tuple(isinstance(leaf, torch.Tensor) for leaf in leaves),
    )  # fmt: skip


def output_tensors(output: Any) -> list[torch.Tensor]:
    """Return the tensors of a model's output, in order."""
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def _bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = dict(signature.bind(*args, **kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            bound |= bound.pop(name, {})
        elif parameter.kind is parameter.VAR_POSITIONAL and bound.get(name):
            raise RuntimeRefusedError(f"the model takes any number of arguments (*{name}); name them")
    return bound
