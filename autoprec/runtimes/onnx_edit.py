"""Candidates as edits of one exported graph: each module's nodes are replaced by those of its format.

What a module is quantised to is computed once for each format and kept, so a candidate costs little more than
writing it down. The numerics are those of `autoprec.kernels.reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from autoprec.errors import ConversionError
from autoprec.kernels import quantize
from autoprec.kernels.formats import GROUP_SIZE
from autoprec.kernels.registry import InputRange
from autoprec.runtimes.onnx_export import ExportedGraph
from autoprec.runtimes.weight_file import WeightFile

MICROSOFT = "com.microsoft"


@dataclass
class _Edit:
    """A graph being rewritten."""

    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, Any] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)

    def weight(self, tensor: Any) -> str:
        self.weights[tensor.name] = tensor
        return str(tensor.name)

    def node(self, kind: str, inputs: list[str], outputs: list[str], name: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=name, **attributes))


class GraphEditor:
    """Makes candidates of one exported graph.

    Args:
        exported: The graph.
        model: The model that it was exported from.
        weights: Takes quantised weights; the graph's own are in it.
        pieces: Quantised weights, shared with the editors of the model's other graphs.
    """

    def __init__(
        self,
        exported: ExportedGraph,
        model: nn.Module,
        weights: WeightFile,
        pieces: dict[tuple[str, str], list[Any]],
    ) -> None:
        self.exported = exported
        self._model = model
        self._weights = weights
        self._pieces = pieces
        self._owners = {name: path for path, names in exported.nodes.items() for name in names}
        self._initializers = {item.name: item for item in exported.proto.graph.initializer}

    def candidate(self, formats: Mapping[str, str], ranges: Mapping[str, InputRange]) -> Any:
        """Return the ONNX model in which modules run in formats other than fp32.

        Args:
            formats: Module path to format; modules that are not named stay as they are.
            ranges: Calibrated input range of each module path that needs one.

        Raises:
            ConversionError: A module cannot take its format.
        """
        edit = _Edit()
        for node in self.exported.proto.graph.node:
            path = self._owners.get(node.name)
            if path is None or formats.get(path, "fp32") == "fp32":
                edit.nodes.append(node)
                continue
            _WRITERS[formats[path]](self, edit, node, path, ranges.get(path))
        results = {item.name for item in self.exported.proto.graph.output}
        read = results | {name for node in edit.nodes for name in node.input}
        # What turned a replaced weight around is of no use any more, and would keep that weight.
        edit.nodes = [node for node in edit.nodes if not read.isdisjoint(node.output)]
        used = results | {name for node in edit.nodes for name in node.input}
        graph = helper.make_graph(
            edit.nodes,
            self.exported.proto.graph.name or "model",
            list(self.exported.proto.graph.input),
            list(self.exported.proto.graph.output),
            [item for item in (*self._initializers.values(), *edit.weights.values()) if item.name in used],
        )
        domains = {entry.domain: entry.version for entry in self.exported.proto.opset_import} | {MICROSOFT: 1}
        made = helper.make_model(graph, ir_version=self.exported.proto.ir_version)
        del made.opset_import[:]
        made.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in domains.items())
        return made

    def _int8(self, path: str) -> list[Any]:
        """Return weight (inputs first for a matrix), scale and zero of a module as int8 initialisers."""

        def make() -> list[Any]:
            found = quantize.int8_channel(self._weight(path))
            values = found.values.t() if found.values.dim() == 2 else found.values
            scale = found.scale.float().numpy()
            return [
                _tensor(values.contiguous().numpy(), f"{path}.int8"),
                _tensor(scale, f"{path}.int8_scale"),
                _tensor(np.zeros(scale.shape, np.int8), f"{path}.int8_zero"),
            ]

        return self._kept(path, "int8", make)

    def _kept(self, path: str, kind: str, make: Callable[[], list[Any]]) -> list[Any]:
        if (path, kind) not in self._pieces:
            self._pieces[path, kind] = [self._weights.keep(tensor) for tensor in make()]
        return self._pieces[path, kind]

    def _weight(self, path: str) -> torch.Tensor:
        weight = self._model.get_submodule(path).weight
        assert isinstance(weight, torch.Tensor)
        return weight.detach()

    def _int8_dynamic(self, edit: _Edit, node: Any, path: str, _: InputRange | None) -> None:
        _linear_only(self._weight(path), path)
        weight, scale, zero = (edit.weight(tensor) for tensor in self._int8(path))
        source = node.input[0]
        quantised = [f"{source}.u8", f"{source}.u8_scale", f"{source}.u8_zero"]
        if quantised[0] not in edit.shared:
            edit.shared.add(quantised[0])
            edit.node("DynamicQuantizeLinear", [source], quantised, f"{source}.quantize")
        name = node.name
        edit.node(
            "MatMulInteger", [quantised[0], weight, quantised[2], zero], [f"{name}.i32"], f"{name}.matmul"
        )
        edit.node("Cast", [f"{name}.i32"], [f"{name}.f32"], f"{name}.cast", to=TensorProto.FLOAT)
        edit.node("Mul", [quantised[1], scale], [f"{name}.scale"], f"{name}.scales")
        edit.node("Mul", [f"{name}.f32", f"{name}.scale"], [_product(node)], f"{name}.scaled")
        _add_bias(edit, node)

    def _int8_static(self, edit: _Edit, node: Any, path: str, seen: InputRange | None) -> None:
        if seen is None:
            raise ConversionError(f"{path}: int8_static needs an input range, and the plan has none")
        scale, zero = quantize.affine_parameters(*seen, 255)
        source = node.input[0]
        # Siblings read one tensor, and their ranges are the same: they share what quantises it.
        place = f"{source}.u8_{zero}_{np.float32(scale).tobytes().hex()}"
        if place not in edit.shared:
            edit.shared.add(place)
            step = edit.weight(_tensor(np.asarray(scale, np.float32), f"{place}.scale"))
            offset = edit.weight(_tensor(np.asarray(zero, np.uint8), f"{place}.zero"))
            edit.node("QuantizeLinear", [source, step, offset], [f"{place}.q"], f"{place}.quantize")
            edit.node(
                "DequantizeLinear", [f"{place}.q", step, offset], [f"{place}.dq"], f"{place}.dequantize"
            )
        self._dequantised(edit, node, path, f"{place}.dq")

    def _int8_weight_only(self, edit: _Edit, node: Any, path: str, _: InputRange | None) -> None:
        self._dequantised(edit, node, path, node.input[0])

    def _dequantised(self, edit: _Edit, node: Any, path: str, source: str) -> None:
        """Compute on `source` with the weight dequantised from int8."""
        weight, scale, zero = (edit.weight(tensor) for tensor in self._int8(path))
        matrix = self._weight(path).dim() == 2
        name = node.name
        edit.node(
            "DequantizeLinear", [weight, scale, zero], [f"{name}.weight"], f"{name}.dequantize",
            axis=1 if matrix else 0,
        )  # fmt: skip
        if matrix:
            edit.node("MatMul", [source, f"{name}.weight"], [_product(node)], f"{name}.matmul")
            _add_bias(edit, node)
            return
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        changed.input[0], changed.input[1] = source, f"{name}.weight"
        edit.nodes.append(changed)

    def _int4_weight_only(self, edit: _Edit, node: Any, path: str, _: InputRange | None) -> None:
        outputs, inputs = _linear_only(self._weight(path), path)
        if inputs % GROUP_SIZE:
            raise ConversionError(
                f"{path}: int4_weight_only needs a multiple of {GROUP_SIZE} inputs, got {inputs}"
            )

        def make() -> list[Any]:
            found = quantize.int4_group(self._weight(path))
            packed = quantize.pack_nibbles(found.values).view(outputs, inputs // GROUP_SIZE, GROUP_SIZE // 2)
            zero = 8 - found.zero.float() / found.scale.float()
            return [
                _tensor(packed.numpy(), f"{path}.int4"),
                _tensor(found.scale.float().flatten().numpy(), f"{path}.int4_scale"),
                _tensor(zero.flatten().numpy(), f"{path}.int4_zero"),
            ]

        names = [edit.weight(tensor) for tensor in self._kept(path, "int4", make)]
        edit.node(
            "MatMulNBits", [node.input[0], *names], [_product(node)], f"{node.name}.matmul",
            domain=MICROSOFT, K=inputs, N=outputs, bits=4, block_size=GROUP_SIZE,
        )  # fmt: skip
        _add_bias(edit, node)


_WRITERS: dict[str, Callable[[GraphEditor, _Edit, Any, str, InputRange | None], None]] = {
    "int8_dynamic": GraphEditor._int8_dynamic,
    "int8_static": GraphEditor._int8_static,
    "int8_weight_only": GraphEditor._int8_weight_only,
    "int4_weight_only": GraphEditor._int4_weight_only,
}


def _tensor(values: NDArray[Any], name: str) -> Any:
    return numpy_helper.from_array(np.ascontiguousarray(values).reshape(values.shape), name)


def _linear_only(weight: torch.Tensor, path: str) -> tuple[int, int]:
    if weight.dim() != 2:
        raise ConversionError(f"{path}: this runtime has the format for linear layers only")
    return weight.shape[0], weight.shape[1]


def _product(node: Any) -> str:
    """Return where a matrix product goes: to the node's output, or to where its bias is added."""
    return f"{node.name}.product" if len(node.input) > 2 else str(node.output[0])


def _add_bias(edit: _Edit, node: Any) -> None:
    if len(node.input) > 2:
        edit.node("Add", [_product(node), node.input[2]], [node.output[0]], f"{node.name}.bias")
