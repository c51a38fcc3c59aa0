"""The model as an ONNX graph in which every tunable module can be found again: exported once a workload."""

from __future__ import annotations

import ast
import contextlib
import io
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autoprec.errors import RuntimeRefusedError, one_line
from autoprec.kernels.registry import Operation
from autoprec.runtimes.calls import CallSignature

MAX_BYTES = 2**31 - 1
"""Largest ONNX model in one file: a limit of its format."""
_OPERATORS = {
    Operation.LINEAR: {"MatMul": 1, "Gemm": 1},
    Operation.CONV2D: {"Conv": 1},
    Operation.EMBEDDING: {"Gather": 0},
}
"""Operators that a module can come out as, with the place of the weight among their inputs."""
_TALKATIVE = ("torch", "torch.onnx", "torch.export", "torch.fx", "torch.fx.experimental.symbolic_shapes")
_SCOPES = "pkg.torch.onnx.name_scopes"


@dataclass(frozen=True)
class ExportedGraph:
    """An exported model.

    Attributes:
        proto: The ONNX model in fp32; never changed.
        nodes: Module path to the names of the graph's nodes that compute it.
        aliases: Name of a node to other names that a runtime may give to what it is compiled into: those of
            its output, and of an `Add` that follows it.
        missing: Module path to why no node computes it.
        signature: How the model is called.
    """

    proto: Any
    nodes: dict[str, tuple[str, ...]]
    aliases: dict[str, tuple[str, ...]]
    missing: dict[str, str]
    signature: CallSignature


def export_graph(
    model: nn.Module, signature: CallSignature, modules: Sequence[tuple[str, Operation]]
) -> ExportedGraph:
    """Export a model as it came.

    Args:
        model: The model, in fp32.
        signature: How it is called; dimensions that vary between calls are dynamic in the graph.
        modules: Path and operation of the tunable modules.

    Raises:
        RuntimeRefusedError: It does not export; says why.
    """
    example = signature.largest.tensors
    shapes: dict[str, Any] = {
        name: dict.fromkeys(signature.varying[name], torch.export.Dim.DYNAMIC) for name in example
    } | dict.fromkeys(signature.constants)
    try:
        with _quiet():
            program = torch.onnx.export(
                model, (), kwargs=example | signature.constants, dynamo=True, dynamic_shapes=shapes,
                verbose=False, optimize=True,
            )  # fmt: skip
            proto = program.model_proto if program is not None else None
    except Exception as error:
        raise RuntimeRefusedError(f"the model does not export to ONNX: {one_line(_root(error))}") from error
    if proto is None or proto.ByteSize() > MAX_BYTES:
        raise RuntimeRefusedError("the exported model is larger than the 2 GB that one ONNX file holds")
    if sorted(i.name for i in proto.graph.input) != sorted(example):
        raise RuntimeRefusedError("the exported graph takes other inputs than the model")
    nodes, missing = _find(proto, modules)
    aliases: dict[str, tuple[str, ...]] = {
        node.name: (node.output[0],) for node in proto.graph.node if node.output
    }
    makers = {names[0]: node for node, names in aliases.items()}
    for node in proto.graph.node:
        if node.op_type == "Add":
            for source in node.input:
                if source in makers:
                    aliases[makers[source]] += (node.name, node.output[0])
    for node in proto.graph.node:
        # Which module it came from is known now; the rest tells where on this machine the code lies.
        del node.metadata_props[:]
    return ExportedGraph(proto, nodes, aliases, missing, signature)


def _find(
    proto: Any, modules: Sequence[tuple[str, Operation]]
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    weights = {initializer.name for initializer in proto.graph.initializer}
    within: dict[str, list[Any]] = {}
    for node in proto.graph.node:
        scopes = _scopes(node)
        if len(scopes) > 1:
            within.setdefault(scopes[-2], []).append(node)
    nodes: dict[str, tuple[str, ...]] = {}
    missing: dict[str, str] = {}
    for path, operation in modules:
        places: Mapping[str, int] = _OPERATORS[operation]
        found = [
            node
            for node in within.get(path, ())
            if node.op_type in places and node.input[places[node.op_type]] in weights
        ]
        if found:
            nodes[path] = tuple(node.name for node in found)
        else:
            missing[path] = "no node of the exported graph computes it: it was fused or renamed away"
    return nodes, missing


def _scopes(node: Any) -> list[str]:
    for entry in node.metadata_props:
        if entry.key == _SCOPES:
            return [str(scope) for scope in ast.literal_eval(entry.value)]
    return []


def _root(error: BaseException) -> BaseException:
    """Return what made an export fail: the exporter wraps it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


@contextlib.contextmanager
def _quiet() -> Any:
    """The exporter tells a lot, in several ways."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
