"""Unit discovery: which modules can be tuned, and which of them share one decision.

One instrumented pass over the example inputs sees which modules run, with which shapes and in which order.
Modules that read one tensor under one parent (`q`, `k`, `v`; `gate`, `up`) form a unit, because servers
fuse them; so do modules whose weights are tied, and those that the user groups. Every module with
parameters that no unit covers is named with the reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from autoprec.errors import SettingError, WorkloadError, one_line
from autoprec.kernels.checked import static_shape
from autoprec.kernels.modules import without_fused_paths
from autoprec.kernels.registry import FormatModule, Operation, OpShape
from autoprec.workload import Example, LoadedWorkload

_CLASSES: tuple[tuple[type[nn.Module], Operation], ...] = (
    (nn.Linear, Operation.LINEAR),
    (nn.Conv2d, Operation.CONV2D),
    (nn.Embedding, Operation.EMBEDDING),
)
_FORWARDS = {nn.Linear: ("forward",), nn.Conv2d: ("forward", "_conv_forward"), nn.Embedding: ("forward",)}
_FLOATS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}

MAX_NAMED = 8
"""Modules that the name of a unit lists, before the rest are counted."""


@dataclass(frozen=True)
class TunableModule:
    """A module that kernels can replace.

    Attributes:
        path: Its name in `named_modules()`.
        operation: What it computes.
        shapes: The distinct shapes it was called with, the most frequent first.
        calls: Calls in one pass over all example inputs.
    """

    path: str
    operation: Operation
    shapes: tuple[OpShape, ...]
    calls: int


@dataclass(frozen=True)
class Unit:
    """Modules that share one precision decision.

    Attributes:
        name: The module's path, or `parent.{a,b}` for several; the first of them is in no other unit.
        modules: In order of execution.
        baseline: The format it has as the model came.
        tied: Whether two of its modules share a weight.
    """

    name: str
    modules: tuple[TunableModule, ...]
    baseline: str
    tied: bool


@dataclass(frozen=True)
class Discovery:
    """What `discover` found.

    Attributes:
        units: In order of execution.
        left: Modules with parameters of their own that no unit covers, path to the reason.
    """

    units: tuple[Unit, ...]
    left: dict[str, str]

    @property
    def modules(self) -> list[TunableModule]:
        """The modules of all units, in order."""
        return [module for unit in self.units for module in unit.modules]


def discover(
    loaded: LoadedWorkload,
    model: nn.Module,
    examples: Sequence[Example],
    *,
    groups: Iterable[str] = (),
    exclude: Iterable[str] = (),
) -> Discovery:
    """Find the units of a model.

    Args:
        loaded: The workload; its own `groups` and `exclude` apply as well.
        model: The model as it came. It is run once over the examples and left as it was.
        examples: The inputs that are timed.
        groups: Regular expressions over module paths. The modules that one matches in full are one unit;
            where it has capturing groups, those with the same captured text are.
        exclude: Regular expressions of modules to leave as they came.

    Raises:
        SettingError: A regular expression is broken, matches no module, or groups several dtypes.
        WorkloadError: The model rejects the example inputs, or has no tunable unit.
    """
    patterns = _compile("groups", (*loaded.groups, *groups))
    excluded = _compile("exclude", (*loaded.exclude, *exclude))
    candidates: dict[str, Operation] = {}
    left: dict[str, str] = {}
    for path, module in model.named_modules():
        if not any(True for _ in module.parameters(recurse=False)):
            continue
        verdict = _classify(path, module)
        if not isinstance(verdict, Operation):  # an Operation is a string too
            left[path] = verdict
        elif match := _first_match(excluded, path):
            left[path] = f"excluded by {match!r}"
        else:
            candidates[path] = verdict
    _refuse_unmatched("exclude", excluded, model)
    _refuse_unmatched("groups", patterns, model)

    seen = _observe(loaded, model, examples, candidates)
    for path in [path for path in candidates if path not in seen]:
        left[path] = "its forward() is not called on the example inputs"
    if not seen:
        raise WorkloadError(
            f"{loaded.reference}: the model has no tunable unit; "
            + ("; ".join(f"{_quoted(path)}: {why}" for path, why in list(left.items())[:5]) or "no weights")
        )
    modules = {path: model.get_submodule(path) for path in seen}
    unions = [*_siblings(seen), *_tied(modules), *_user_groups(patterns, seen)]
    units = tuple(_unit(paths, seen, modules) for paths in _merge(list(seen), unions))
    return Discovery(units, left)


@dataclass
class _Seen:
    operation: Operation
    shapes: Counter[OpShape]
    reads: list[tuple[object, ...]]


def _classify(path: str, module: nn.Module) -> Operation | str:
    for kind, operation in _CLASSES:
        if not isinstance(module, kind):
            continue
        weight = module.weight
        if path == "":
            return "it is the whole model, which cannot be replaced in place; wrap it in a module"
        if parametrize.is_parametrized(module):
            return "its weight is parametrised, which a converted weight would ignore"
        if any(getattr(type(module), name) is not getattr(kind, name) for name in _FORWARDS[kind]):
            return f"{type(module).__name__} overrides {kind.__name__}.forward"
        if module._forward_hooks or module._forward_pre_hooks:
            return "it has forward hooks (weight_norm, pruning, ...), which a replacement would lose"
        if not isinstance(weight, torch.Tensor) or weight.dtype not in _FLOATS:
            return f"its weight is {getattr(weight, 'dtype', type(weight).__name__)}, not fp32, bf16 or fp16"
        if weight.is_meta:
            return "its weight is on the meta device"
        return operation
    if isinstance(module, FormatModule):
        return f"it already runs in {module.format_name}"
    return f"no kernel for {type(module).__name__}"


def _observe(
    loaded: LoadedWorkload, model: nn.Module, examples: Sequence[Example], candidates: dict[str, Operation]
) -> dict[str, _Seen]:
    """Run the examples once and return what ran, in order of the first call."""
    seen: dict[str, _Seen] = {}
    kept: list[torch.Tensor] = []  # inputs stay alive, so that no address is used twice within the pass

    def watch(path: str, operation: Operation) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            value = args[0] if args else next(iter(kwargs.values()))
            kept.append(value)
            record = seen.setdefault(path, _Seen(operation, Counter(), []))
            record.shapes[shape_of(module, value, output)] += 1
            version = -1 if value.is_inference() else value._version
            record.reads.append((value.data_ptr(), tuple(value.shape), value.stride(), version))

        return hook

    handles = [
        model.get_submodule(path).register_forward_hook(watch(path, operation), with_kwargs=True)
        for path, operation in candidates.items()
    ]
    try:
        with torch.no_grad(), without_fused_paths():
            for example in examples:
                try:
                    loaded.run(model, example.inputs)
                except Exception as error:
                    raise WorkloadError(
                        f"{loaded.reference}: the model rejects the example inputs ({example.name}): "
                        f"{one_line(error)}"
                    ) from error
    finally:
        for handle in handles:
            handle.remove()
    return seen


def shape_of(module: nn.Module, value: torch.Tensor, output: torch.Tensor) -> OpShape:
    """Return the shape of one call, from the module, its input and its output."""
    if isinstance(module, nn.Conv2d):
        rows = output.numel() // module.out_channels
    elif isinstance(module, nn.Linear):
        rows = value.numel() // module.in_features if module.in_features else 0
    else:
        rows = value.numel()
    return static_shape(module, rows)


def _siblings(seen: dict[str, _Seen]) -> Iterator[list[str]]:
    together: dict[tuple[object, ...], list[str]] = {}
    for path, record in seen.items():
        if record.operation is Operation.LINEAR:
            together.setdefault((path.rpartition(".")[0], *record.reads), []).append(path)
    yield from together.values()


def _quoted(path: str) -> str:
    return repr(path) if path else "the model"


def _tied(modules: dict[str, nn.Module]) -> Iterator[list[str]]:
    together: dict[int, list[str]] = {}
    for path, module in modules.items():
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        if weight.numel():
            together.setdefault(weight.untyped_storage().data_ptr(), []).append(path)
    yield from together.values()


def _user_groups(patterns: Sequence[re.Pattern[str]], seen: dict[str, _Seen]) -> Iterator[list[str]]:
    for pattern in patterns:
        together: dict[tuple[str | None, ...], list[str]] = {}
        for path in seen:
            if match := pattern.fullmatch(path):
                together.setdefault(match.groups(), []).append(path)
        yield from together.values()


def _merge(paths: list[str], unions: Iterable[list[str]]) -> list[list[str]]:
    """Return the connected components of `paths`, each in order, in order of their first path."""
    owner = {path: {path} for path in paths}
    for union in unions:
        merged = set().union(*(owner[path] for path in union))
        for path in merged:
            owner[path] = merged
    order = {path: index for index, path in enumerate(paths)}
    components = {id(members): sorted(members, key=order.__getitem__) for members in owner.values()}
    return sorted(components.values(), key=lambda members: order[members[0]])


def _unit(paths: list[str], seen: dict[str, _Seen], modules: dict[str, nn.Module]) -> Unit:
    members = tuple(
        TunableModule(
            path,
            seen[path].operation,
            tuple(shape for shape, _ in seen[path].shapes.most_common()),
            len(seen[path].reads),
        )
        for path in paths
    )
    weights = [modules[path].weight for path in paths]
    formats = {_FLOATS[weight.dtype] for weight in weights if isinstance(weight, torch.Tensor)}
    if len(formats) > 1:
        raise SettingError(
            f"groups puts modules in {' and '.join(sorted(formats))} in one unit ({_unit_name(paths)}); "
            "group modules of one dtype, which can share a format"
        )
    storages = {weight.untyped_storage().data_ptr() for weight in weights if isinstance(weight, torch.Tensor)}
    return Unit(_unit_name(paths), members, formats.pop(), tied=len(storages) < len(paths))


def _unit_name(paths: list[str]) -> str:
    if len(paths) == 1:
        return paths[0]
    parts = [path.split(".") for path in paths]
    shared = 0
    while all(len(part) > shared + 1 and part[shared] == parts[0][shared] for part in parts):
        shared += 1
    prefix = ".".join(parts[0][:shared])
    rest = [".".join(part[shared:]) for part in parts]
    if len(rest) > MAX_NAMED:
        rest = [*rest[:MAX_NAMED], f"and {len(rest) - MAX_NAMED} more"]
    return f"{prefix}.{{{','.join(rest)}}}" if prefix else f"{{{','.join(rest)}}}"


def _compile(option: str, patterns: Iterable[str]) -> list[re.Pattern[str]]:
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except re.error as error:
            raise SettingError(f"{option} has the broken regular expression {pattern!r}: {error}") from error
    return compiled


def _first_match(patterns: Sequence[re.Pattern[str]], path: str) -> str | None:
    return next((pattern.pattern for pattern in patterns if pattern.fullmatch(path)), None)


def _refuse_unmatched(option: str, patterns: Sequence[re.Pattern[str]], model: nn.Module) -> None:
    paths = [path for path, _ in model.named_modules()]
    for pattern in patterns:
        if not any(pattern.fullmatch(path) for path in paths):
            raise SettingError(
                f"{option} {pattern.pattern!r} matches no module in full; "
                f"module names look like {paths[-1]!r}"
            )
