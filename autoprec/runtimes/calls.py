"""How a workload calls its model: what a runtime that works on exported graphs has to know.

Everything that `run` and `quality` pass to the model is watched once, on the model as it came. A way of
calling it, a *form*, is a set of arguments, the containers that hold their tensors, and constants; each form
gets a graph of its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from autoprec.errors import RuntimeRefusedError
from autoprec.kernels.modules import without_fused_paths
from autoprec.runtimes.structure import Structure, build, describe, difference, flatten, names, places, walk

KEPT = 4
"""Calls of a form whose results are kept, to compare its graph with."""
MOST_BYTES = 2**26
"""Bytes of arguments of a form that are kept beyond those calls, to export from the largest shapes."""
MOST_FORMS = 8
"""Each costs an export. A model called in more ways probably gets a number that counts up."""


@dataclass(frozen=True)
class Call:
    """One call of the model.

    Attributes:
        tensors: Those of the arguments.
        results: Those of the output and of the arguments that the model changed, where they are kept.
    """

    tensors: tuple[torch.Tensor, ...]
    results: tuple[torch.Tensor, ...] | None


@dataclass(frozen=True)
class Form:
    """One way in which a model is called.

    Attributes:
        arguments: Structure of the arguments, a dictionary by name.
        output: Structure of what the model returns.
        changed: For each argument that the model changes, its structure after the call.
        varying: For each tensor of the arguments, the dimensions that differ between calls.
        calls: Some of the calls, distinct in shape.
        reached: Paths of the tunable modules that run in it.
        timed: Whether the example inputs are run in it; the others are for judging.
    """

    arguments: Structure
    output: Structure
    changed: dict[str, Structure]
    varying: tuple[tuple[int, ...], ...]
    calls: tuple[Call, ...]
    reached: frozenset[str]
    timed: bool

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the graph's inputs: those of arguments, and where they are in it."""
        named: list[str] = []
        for place in names(self.arguments):
            name = place
            while name in named:  # keys may hold what parts them: `{"a.b": x, "a": {"b": y}}`
                name = f"{name}.other"
            named.append(name)
        return tuple(named)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the graph's outputs: where they are in the output, then in changed arguments."""
        found = [name or "output" for name in names(self.output)]
        for argument, structure in self.changed.items():
            found += [f"{argument}.{name}".removesuffix(".") for name in names(structure)]
        # Numbers stand for parts of a list; an input of the same name would be taken for the same tensor.
        taken = self.inputs
        named: list[str] = []
        for place in found:
            name = f"output.{place}" if place.split(".")[0].isdigit() else place
            while name in taken or name in named:
                name = f"new.{name}"
            named.append(name)
        return tuple(named)

    @property
    def largest(self) -> Call:
        """The call whose varying dimensions are the longest: dimensions of 1 would be taken for fixed."""

        def key(call: Call) -> tuple[int, int]:
            pairs = zip(call.tensors, self.varying, strict=True)
            sizes = [tensor.shape[d] for tensor, dims in pairs for d in dims]
            return min(sizes, default=0), sum(sizes)

        return max(self.calls, key=key)

    def give(self, given: dict[str, Any], results: Iterable[torch.Tensor]) -> Any:
        """Change the caller's arguments as the model would, and return what it would.

        Args:
            given: The arguments by name.
            results: The graph's outputs.
        """
        found = iter(results)
        outputs = [next(found) for token in self.output if token[0] == "tensor"]
        for name, structure in self.changed.items():
            build(structure, found, into=given[name])
        return build(self.output, outputs, given=given)

    def misfit(self, tensors: Iterable[torch.Tensor]) -> str:
        """Return which shape no watched call had; empty where each is one that the graph is for."""
        for name, tensor, dims, seen in zip(
            self.inputs, tensors, self.varying, self.calls[0].tensors, strict=True
        ):
            for d, (size, fixed) in enumerate(zip(tensor.shape, seen.shape, strict=True)):
                if d not in dims and size != fixed:
                    return (
                        f"{name} has {size} in dimension {d}; it had {fixed} in every call of the workload, "
                        "so the graph is fixed to that: let example inputs or calibration batches vary it"
                    )
        return ""


class Calls:
    """How a model is called.

    Args:
        model: The model.

    Attributes:
        forms: The ways in which it was called, those of the example inputs first.
    """

    def __init__(self, model: nn.Module) -> None:
        self._signature = inspect.signature(model.forward)
        self.forms: tuple[Form, ...] = ()

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, in the order of the signature, without defaults.

        Raises:
            RuntimeRefusedError: They are any number of arguments without names.
        """
        given = dict(self._signature.bind(*args, **kwargs).arguments) if args else kwargs
        found: dict[str, Any] = {}
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                if given.get(name):
                    raise RuntimeRefusedError(f"the model takes any number of arguments (*{name}); name them")
            elif parameter.kind is parameter.VAR_KEYWORD:
                others = given.get(name, {}) if args else given
                found |= {key: others[key] for key in sorted(others) if key not in self._signature.parameters}
            elif name in given and not (given[name] is None and parameter.default is None):
                found[name] = given[name]
        return found

    def unknown(self, structure: Structure) -> RuntimeRefusedError:
        """Return the error for a call in a form that was not watched."""
        return RuntimeRefusedError(
            f"the model is called with {describe(structure)}, which it was not when it was watched: "
            + "; ".join(
                f"{difference(structure, form.arguments)} as in form {index}"
                for index, form in enumerate(self.forms, 1)
            )
            + ". Call it that way on the example inputs, or in quality of the split that is searched on"
        )


@dataclass
class _Watched:
    """A form while it is watched."""

    timed: bool
    bytes: int = 0
    shapes: set[tuple[torch.Size, ...]] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)
    after: tuple[Structure, dict[str, Structure]] | None = None


def watch_calls(
    model: nn.Module,
    paths: Iterable[str],
    run_examples: Callable[[], object],
    judge: Callable[[], object],
) -> Calls:
    """Watch how a workload calls a model.

    Args:
        model: The model as it came.
        paths: Those of the tunable modules.
        run_examples: Runs what is timed.
        judge: Does all else that the workload does with the model.

    Raises:
        RuntimeRefusedError: The model is never called, in too many ways, or with what no graph takes.
    """
    watcher = _Watcher(model)
    handles = [
        model.register_forward_pre_hook(watcher.before, with_kwargs=True),
        model.register_forward_hook(watcher.after, with_kwargs=True),
        *(
            model.get_submodule(path).register_forward_hook(
                lambda module, args, output, path=path: watcher.reached(path)
            )
            for path in paths
        ),
    ]
    try:
        with without_fused_paths():
            run_examples()
            watcher.timed = False
            judge()
    finally:
        for handle in handles:
            handle.remove()
    return watcher.result()


_Now = tuple[Structure, dict[str, Any], list[torch.Tensor], tuple[torch.Tensor, ...] | None, list[int]]
"""A call that has begun: structure, arguments, tensors, copies where they are kept, and versions."""


class _Watcher:
    """Hooks that write down how a model is called."""

    def __init__(self, model: nn.Module) -> None:
        self.timed = True
        self._calls = Calls(model)
        self._forms: dict[Structure, _Watched] = {}
        self._now: _Now | None = None

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = self._calls.named(args, kwargs)
        structure, tensors = flatten(given)
        if not tensors:
            raise RuntimeRefusedError(f"the model is called with {describe(structure)}: no tensor among them")
        if structure not in self._forms:
            if len(self._forms) == MOST_FORMS:
                raise RuntimeRefusedError(
                    f"the model is called in more than {MOST_FORMS} ways, of which each needs a graph: "
                    f"{difference(structure, next(reversed(self._forms)))} as before"
                )
            _refuse_types(structure, "is called with")
            self._forms[structure] = _Watched(self.timed)
        watched = self._forms[structure]
        shapes = tuple(tensor.shape for tensor in tensors)
        copies = None
        if shapes not in watched.shapes:
            watched.shapes.add(shapes)
            size = sum(tensor.nbytes for tensor in tensors)
            if len(watched.calls) < KEPT or watched.bytes + size <= MOST_BYTES:
                watched.bytes += size
                copies = tuple(tensor.detach().clone() for tensor in tensors)
        self._now = structure, given, tensors, copies, [_version(tensor) for tensor in tensors]

    def reached(self, path: str) -> None:
        if self._now is not None:
            self._forms[self._now[0]].reached.add(path)

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        assert self._now is not None
        structure, given, tensors, copies, versions = self._now
        self._now = None
        watched = self._forms[structure]
        returned, results = flatten(output, places(given), "returns")
        _refuse_types(returned, "returns")
        changed: dict[str, Structure] = {}
        rest = iter(tensors)
        for name, value in given.items():
            now, held = flatten(value)
            before = [next(rest) for token in _part_of(structure, name) if token[0] == "tensor"]
            if now != _part_of(structure, name) or any(a is not b for a, b in zip(held, before, strict=True)):
                changed[name] = now
                results = [*results, *held]
        if watched.after is None:
            watched.after = returned, changed
        if watched.after != (returned, changed):
            raise RuntimeRefusedError(
                "what the model returns for the same kind of call varies by more than the shapes of tensors: "
                + (difference(returned, watched.after[0]) or f"it changes {', '.join(changed) or 'nothing'}")
            )
        if copies is None:
            return
        for name, tensor, copy, version in zip(names(structure), tensors, copies, versions, strict=True):
            # What was halved often enough is zero, and stays as it is.
            if version != _version(tensor) or not bool(((tensor == copy) | torch.isnan(copy)).all()):
                raise RuntimeRefusedError(
                    f"the model writes into the tensor {name} that it is called with; a graph cannot"
                )
        kept = len(watched.calls) < KEPT
        watched.calls.append(
            Call(copies, tuple(result.detach().clone() for result in results) if kept else None)
        )

    def result(self) -> Calls:
        if not self._forms:
            raise RuntimeRefusedError("the model itself is never called with a tensor, only parts of it")
        self._calls.forms = tuple(_form(structure, watched) for structure, watched in self._forms.items())
        return self._calls


def _refuse_types(structure: Structure, what: str) -> None:
    """Refuse tensors that no array can hold, in which runtimes take and give them."""
    for place, token in walk(structure):
        if token[0] == "tensor" and not _has_arrays(token[1]):
            kind = str(token[1]).removeprefix("torch.")
            raise RuntimeRefusedError(
                f"the model {what} {place or 'a tensor'} in {kind}, which the arrays that graphs take and "
                "give cannot hold: convert it within the model, or in run"
            )


def _version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written to; inference tensors do not count it."""
    return 0 if tensor.is_inference() else tensor._version


@functools.cache
def _has_arrays(dtype: torch.dtype) -> bool:
    try:
        torch.empty(0, dtype=dtype).numpy()
    except (TypeError, RuntimeError):
        return False
    return True


def _form(structure: Structure, watched: _Watched) -> Form:
    assert watched.after is not None, "a call that raises ends the watching"
    by_tensor = zip(*watched.shapes, strict=True)
    varying = tuple(
        tuple(d for d, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1)
        for shapes in by_tensor
    )
    return Form(
        structure, watched.after[0], watched.after[1], varying, tuple(watched.calls),
        frozenset(watched.reached), watched.timed,
    )  # fmt: skip


def _part_of(structure: Structure, argument: str) -> Structure:
    """Return the structure of one argument."""
    keys = structure[0][2]
    rest = iter(structure[1:])
    parts = {key: _subtree(rest) for key in keys}
    return tuple(parts[argument])


def _subtree(rest: Any) -> list[Any]:
    token = next(rest)
    found = [token]
    if token[0] not in ("tensor", "constant", "same"):
        for _ in token[2]:
            found += _subtree(rest)
    return found
