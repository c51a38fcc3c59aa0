"""The model as an ONNX graph in which every tunable module can be found again: exported once a form."""

from __future__ import annotations

import ast
import contextlib
import io
import logging
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from autoprec.errors import RuntimeRefusedError, one_line
from autoprec.kernels.modules import without_fused_paths
from autoprec.kernels.registry import Operation
from autoprec.runtimes.calls import Form
from autoprec.runtimes.structure import Structure, build, difference, flatten, places
from autoprec.runtimes.weight_file import WeightFile

MAX_BYTES = 2**31 - 1
"""Largest ONNX file: a limit of its format."""
_OPERATORS = {
    Operation.LINEAR: {"MatMul": 1, "Gemm": 1},
    Operation.CONV2D: {"Conv": 1},
    Operation.EMBEDDING: {"Gather": 0},
}
"""Operators that a module can come out as, with the place of the weight among their inputs."""
_TALKATIVE = (
    "torch", "torch.onnx", "torch.export", "torch.fx", "torch.fx.experimental.symbolic_shapes",
    "onnx_ir", "onnxscript",
)  # fmt: skip
_SCOPES = "pkg.torch.onnx.name_scopes"
_TORCH = str(Path(torch.__file__).parent)
_INNER = "model"
"""Where the model is in what is exported; weights are named after it in the graph."""


@dataclass(frozen=True)
class ExportedGraph:
    """A model exported in one form.

    Attributes:
        proto: The ONNX model in fp32, its larger weights in a `WeightFile`; never changed.
        nodes: Module path to the names of the graph's nodes that compute it.
        aliases: Name of a node to other names that a runtime may give to what it is compiled into: those of
            its output, and of an `Add` that follows it.
        missing: Path of each module that runs in the form to why no node computes it.
        form: How the model is called.
    """

    proto: Any
    nodes: dict[str, tuple[str, ...]]
    aliases: dict[str, tuple[str, ...]]
    missing: dict[str, str]
    form: Form


def export_graph(
    model: nn.Module, form: Form, modules: Sequence[tuple[str, Operation]], weights: WeightFile
) -> ExportedGraph:
    """Export a model as it came, in one form.

    Args:
        model: The model, in fp32.
        form: How it is called; dimensions that vary between calls are dynamic in the graph.
        modules: Path and operation of the tunable modules; those that the form does not reach are left out.
        weights: Takes the graph's weights.

    Raises:
        RuntimeRefusedError: It does not export; says why.
    """
    shapes = tuple(dict.fromkeys(dims, torch.export.Dim.DYNAMIC) for dims in form.varying)
    try:
        # Inference tensors, which the watched calls may hold, cannot be traced. Without gradients, which are
        # not wanted, torch would take fused paths that no exporter knows.
        tensors = tuple(tensor.clone() for tensor in form.largest.tensors)
        with quiet(), torch.no_grad(), without_fused_paths():
            program = torch.onnx.export(
                _Flat(model, form), tensors, dynamo=True, dynamic_shapes={"tensors": shapes},
                verbose=False, optimize=True,
            )  # fmt: skip
            assert program is not None, "the exporter by torch.export returns a program"
            made = program.model
            _name(made.graph, form)
            weights.take(made.graph)
            proto = ir.to_proto(made)
    except RuntimeRefusedError:
        raise
    except Exception as error:
        raise RuntimeRefusedError(f"the model does not export to ONNX: {_reason(error)}") from error
    if proto.ByteSize() > MAX_BYTES:
        raise RuntimeRefusedError("without its weights the exported graph is larger than the 2 GB of a file")
    nodes, missing = _find(proto, [each for each in modules if each[0] in form.reached])
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
    return ExportedGraph(proto, nodes, aliases, missing, form)


class _Flat(nn.Module):
    """A model called with the tensors of a form, giving tensors: what a graph can be exported from."""

    def __init__(self, model: nn.Module, form: Form) -> None:
        super().__init__()
        setattr(self, _INNER, model)
        self.training = model.training
        self._form = form

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Put the arguments together, call the model, and take its output apart."""
        given = build(self._form.arguments, tensors)
        found = getattr(self, _INNER)(**given)
        structure, results = flatten(found, places(given))
        self._check("the output", structure, self._form.output)
        for name, expected in self._form.changed.items():
            structure, held = flatten(given[name])
            self._check(name, structure, expected)
            results += held
        return results

    def _check(self, what: str, found: Structure, expected: Structure) -> None:
        if found != expected:
            raise RuntimeRefusedError(
                f"{what} comes out differently where the model is exported: {difference(found, expected)}"
            )


def _name(graph: Any, form: Form) -> None:
    """Name the inputs and outputs of a graph after the arguments and outputs of the model."""
    if (len(graph.inputs), len(graph.outputs)) != (len(form.inputs), len(form.outputs)):
        raise RuntimeRefusedError(
            "the exported graph takes other inputs or gives other outputs than the model"
        )
    own = {id(value) for value in graph.inputs} | {id(value) for value in graph.initializers.values()}
    for index, value in enumerate(graph.outputs):
        if id(value) in own:  # an input that is given back, or one output twice
            node = ir.node("Identity", [value])
            node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
            graph.append(node)
            graph.outputs[index] = node.outputs[0]
        own.add(id(graph.outputs[index]))
    taken = {*form.inputs, *form.outputs}
    inside = [value for node in graph for value in node.outputs] + list(graph.initializers.values())
    for value in [*graph.inputs, *inside]:
        if value.name in taken:
            value.name = f"{value.name}.inner"
    for value, name in zip([*graph.inputs, *graph.outputs], [*form.inputs, *form.outputs], strict=True):
        value.name = name


def _find(
    proto: Any, modules: Sequence[tuple[str, Operation]]
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    weights = {initializer.name for initializer in proto.graph.initializer}
    # A weight that is large, or shared with an embedding, is turned around in the graph.
    weights |= {
        node.output[0]
        for node in proto.graph.node
        if node.op_type == "Transpose" and node.input[0] in weights
    }
    within: dict[str, list[Any]] = {}
    for node in proto.graph.node:
        scopes = _scopes(node)
        if len(scopes) > 1:
            path = scopes[-2].removeprefix(_INNER).removeprefix(".")
            within.setdefault(path, []).append(node)
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


def _reason(error: BaseException) -> str:
    """Return what made an export fail, which the exporter wraps, and the line of the model that did it."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    # From `_Flat.forward` on it is the model that runs.
    ours = [i for i, frame in enumerate(frames) if (frame.filename, frame.name) == (__file__, "forward")]
    own = [frame for frame in frames[max(ours, default=len(frames)) + 1 :] if _TORCH not in frame.filename]
    place = f" at {own[-1].filename}:{own[-1].lineno}, `{own[-1].line}`" if own else ""
    return one_line(error) + place


@contextlib.contextmanager
def quiet() -> Any:
    """Keep to itself what the exporter and the rewrites tell: a lot, in several ways."""
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
