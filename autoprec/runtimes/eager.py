"""PyTorch as it is: modules are replaced one by one, everything else runs as the user wrote it."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from autoprec.apply import convert_modules, read_applied
from autoprec.errors import WorkloadError
from autoprec.kernels.registry import FormatModule, held_bytes
from autoprec.plan import EAGER, Plan
from autoprec.runtimes.runtime import Executable, Runtime


class EagerRuntime(Runtime):
    """Replaces modules in a copy of the model that shares the parameters it keeps."""

    name = EAGER

    @property
    def versions(self) -> dict[str, str]:
        """See `Runtime.versions`."""
        return {}

    def build(self, model: nn.Module, plan: Plan) -> EagerExecutable:
        """See `Runtime.build`."""
        return EagerExecutable(converted_copy(model, plan), plan)


class EagerExecutable(Executable):
    """A converted copy of the user's model."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self.model = model
        self._plan = plan
        self._waiting: dict[str, RemovableHandle] = {}
        for unit in plan.units:
            for entry in unit.modules:
                module = model.get_submodule(entry.path)
                if isinstance(module, FormatModule):
                    self._waiting[entry.path] = module.register_forward_pre_hook(self._ran(entry.path))

    def _ran(self, path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            # Removing itself keeps hooks out of everything that is timed.
            if handle := self._waiting.pop(path, None):
                handle.remove()

        return hook

    def applied(self) -> dict[str, tuple[str, str]]:
        """See `Executable.applied`."""
        return read_applied(self.model, self._plan)

    def idle(self) -> frozenset[str]:
        """See `Executable.idle`."""
        return frozenset(self._waiting)

    def held_bytes(self) -> int:
        """See `Executable.held_bytes`."""
        return held_bytes(self.model)

    def close(self) -> None:
        """See `Executable.close`."""
        self._remove_hooks()
        self._waiting.clear()
        self.model = nn.Module()

    def _remove_hooks(self) -> None:
        """Stop watching: what has not run by now counts as idle."""
        for handle in self._waiting.values():
            handle.remove()


def converted_copy(model: nn.Module, plan: Plan) -> nn.Module:
    """Return a copy of a model in which each unit runs in the plan's format; see `clone_sharing_parameters`.

    Raises:
        ConversionError: A kernel refuses a module.
    """
    clone = clone_sharing_parameters(model)
    convert_modules(clone, plan)
    return clone


def clone_sharing_parameters(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose modules and buffers are new and whose parameters are the same tensors.

    Conversion replaces modules and never writes to a parameter, so the original stays pristine and a
    candidate costs only what it converts.

    Raises:
        WorkloadError: The model cannot be copied.
    """
    memo: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    try:
        clone = copy.deepcopy(model, memo)
    except Exception as error:
        raise WorkloadError(
            f"the model ({type(model).__name__}) cannot be copied: {type(error).__name__}: {error}; "
            "AutoPrec changes a copy for each candidate, so make it work with copy.deepcopy"
        ) from error
    return clone
