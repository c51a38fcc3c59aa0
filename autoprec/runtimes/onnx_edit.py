"""Candidates as edits of one exported graph: each module's nodes are replaced by those of its format.

What a module is quantised to is computed once for each format and kept, so a candidate costs little more than
writing it down. The numerics are those of `autoprec.kernels.reference`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from autoprec.errors import ConversionError
from autoprec.kernels import quantize
from autoprec.kernels.calibration import Calibration
from autoprec.kernels.formats import GROUP_SIZE
from autoprec.runtimes.onnx_export import ExportedGraph
from autoprec.runtimes.weight_file import WeightFile

MICROSOFT = "com.microsoft"


@dataclass
class _Edit:
    """A graph being rewritten."""

    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, Any] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    apart: set[str] = field(default_factory=set)
    """Products to which nothing may be added by an `Add`."""

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
        pieces: dict[tuple[object, ...], list[Any]],
    ) -> None:
        self.exported = exported
        self._model = model
        self._weights = weights
        self._pieces = pieces
        self._owners = {name: path for path, names in exported.nodes.items() for name in names}
        graph = exported.proto.graph
        shapes = {item.name: item.type.tensor_type.shape.dim for item in (*graph.value_info, *graph.output)}
        self._open = {
            name
            for name, dims in shapes.items()
            if len(dims) > 2 and not all(dim.HasField("dim_value") for dim in dims)
        }
        """What has more than two dimensions, one of them not fixed."""
        self._initializers = {item.name: item for item in exported.proto.graph.initializer}

    def on(self, proto: Any) -> GraphEditor:
        """Return an editor of another form of the same graph, whose tunable nodes have the same names."""
        return GraphEditor(replace(self.exported, proto=proto), self._model, self._weights, self._pieces)

    def candidate(self, formats: Mapping[str, str], calibrations: Mapping[str, Calibration | None]) -> Any:
        """Return the ONNX model in which modules run in formats other than fp32.

        Args:
            formats: Module path to format; modules that are not named stay as they are.
            calibrations: What is known of the input of each module path that needs it.

        Raises:
            ConversionError: A module cannot take its format.
        """
        edit = _Edit()
        for node in self.exported.proto.graph.node:
            path = self._owners.get(node.name)
            if path is None or formats.get(path, "fp32") == "fp32":
                edit.nodes.append(node)
                continue
            if formats[path] not in _WRITERS:
                raise ConversionError(
                    f"{path}: no graph is written in {formats[path]}; there are fp32, {', '.join(_WRITERS)}"
                )
            _WRITERS[formats[path]](self, edit, node, path, calibrations.get(path))
        edit.nodes = [node if edit.apart.isdisjoint(node.input) else _summed(node) for node in edit.nodes]
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

    def _int8(self, path: str, smooth: Calibration | None = None) -> list[Any]:
        """Return weight (inputs first for a matrix), scale and zero of a module as int8 initialisers."""
        kind = "int8" if smooth is None else "int8_smooth"

        def make() -> list[Any]:
            weight = self._weight(path)
            found = quantize.int8_channel(weight if smooth is None else weight * smooth.factors())
            values = found.values.t() if found.values.dim() == 2 else found.values
            scale = found.scale.float().numpy()
            return [
                _tensor(values.contiguous().numpy(), f"{path}.{kind}"),
                _tensor(scale, f"{path}.{kind}_scale"),
                _tensor(np.zeros(scale.shape, np.int8), f"{path}.{kind}_zero"),
            ]

        return self._kept((path, kind, smooth and smooth.smoothing), make)

    def _kept(self, key: tuple[object, ...], make: Callable[[], list[Any]]) -> list[Any]:
        if key not in self._pieces:
            self._pieces[key] = [self._weights.keep(tensor) for tensor in make()]
        return self._pieces[key]

    def _weight(self, path: str) -> torch.Tensor:
        weight = self._model.get_submodule(path).weight
        assert isinstance(weight, torch.Tensor)
        return weight.detach()

    def _smoothed(self, edit: _Edit, node: Any, path: str, seen: Calibration | None) -> str:
        """Return the node's input with its channels smoothed; siblings with equal factors share it."""
        outputs_inputs = _linear_only(self._weight(path), path)
        if seen is None or len(seen.smoothing) != outputs_inputs[1]:
            raise ConversionError(f"{path}: the plan has no smoothing for its {outputs_inputs[1]} inputs")
        source = node.input[0]
        place = f"{source}.smooth_{zlib.crc32(repr(seen.smoothing).encode()):08x}"
        if place not in edit.shared:
            edit.shared.add(place)
            shrink = edit.weight(_tensor((1 / seen.factors()).numpy(), f"{place}.factors"))
            edit.node("Mul", [source, shrink], [place], f"{place}.multiply")
        return place

    def _int8_dynamic_smooth(self, edit: _Edit, node: Any, path: str, seen: Calibration | None) -> None:
        self._dynamic(edit, node, self._smoothed(edit, node, path, seen), self._int8(path, seen))

    def _int8_dynamic(self, edit: _Edit, node: Any, path: str, _: Calibration | None) -> None:
        _linear_only(self._weight(path), path)
        self._dynamic(edit, node, node.input[0], self._int8(path))

    def _dynamic(self, edit: _Edit, node: Any, source: str, held: list[Any]) -> None:
        """Compute on `source`, quantised as it comes, with a weight of int8."""
        weight, scale, zero = (edit.weight(tensor) for tensor in held)
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

    def _int8_static_smooth(self, edit: _Edit, node: Any, path: str, seen: Calibration | None) -> None:
        source = self._smoothed(edit, node, path, seen)
        self._dequantised(edit, node, path, self._static(edit, path, source, seen), self._int8(path, seen))

    def _int8_static(self, edit: _Edit, node: Any, path: str, seen: Calibration | None) -> None:
        self._dequantised(edit, node, path, self._static(edit, path, node.input[0], seen), self._int8(path))

    def _static(self, edit: _Edit, path: str, source: str, seen: Calibration | None) -> str:
        """Return `source` quantised by its calibrated range, and dequantised."""
        if seen is None:
            raise ConversionError(f"{path}: static formats need an input range, and the plan has none")
        scale, zero = quantize.affine_parameters(seen.low, seen.high, 255)
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
        return f"{place}.dq"

    def _int8_weight_only(self, edit: _Edit, node: Any, path: str, _: Calibration | None) -> None:
        if node.op_type == "Gather":
            self._int8_rows(edit, node, path)
        else:
            self._dequantised(edit, node, path, node.input[0], self._int8(path))

    def _int8_rows(self, edit: _Edit, node: Any, path: str) -> None:
        """Look rows of int8 up, and dequantise only them."""

        def make() -> list[Any]:
            found = quantize.int8_channel(self._weight(path))
            return [
                _tensor(found.values.numpy(), f"{path}.int8_rows"),
                _tensor(found.scale.float().view(-1, 1).numpy(), f"{path}.int8_rows_scale"),
            ]

        table, scales = (edit.weight(tensor) for tensor in self._kept((path, "int8_rows"), make))
        name, indices = node.name, node.input[1]
        edit.node("Gather", [table, indices], [f"{name}.i8"], f"{name}.rows")
        edit.node("Gather", [scales, indices], [f"{name}.scale"], f"{name}.scales")
        edit.node("Cast", [f"{name}.i8"], [f"{name}.f32"], f"{name}.cast", to=TensorProto.FLOAT)
        edit.node("Mul", [f"{name}.f32", f"{name}.scale"], [node.output[0]], f"{name}.scaled")

    def _dequantised(self, edit: _Edit, node: Any, path: str, source: str, held: list[Any]) -> None:
        """Compute on `source` with the weight dequantised from int8."""
        weight, scale, zero = (edit.weight(tensor) for tensor in held)
        matrix = self._weight(path).dim() == 2
        name = node.name
        edit.node(
            "DequantizeLinear", [weight, scale, zero], [f"{name}.weight"], f"{name}.dequantize",
            axis=1 if matrix else 0,
        )  # fmt: skip
        if matrix:
            edit.node("MatMul", [source, f"{name}.weight"], [_product(node)], f"{name}.matmul")
            _add_bias(edit, node)
            if node.output[0] not in self._open:  # there an `Add` may be fused into more
                edit.apart.add(_product(node))
            return
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        changed.input[0], changed.input[1] = source, f"{name}.weight"
        edit.nodes.append(changed)

    def _bf16(self, edit: _Edit, node: Any, path: str, _: Calibration | None) -> None:
        _linear_only(self._weight(path), path)

        def make() -> list[Any]:
            values = self._weight(path).t().bfloat16().contiguous()
            return [
                TensorProto(
                    name=f"{path}.bf16", data_type=TensorProto.BFLOAT16, dims=values.shape,
                    raw_data=values.view(torch.int16).numpy().tobytes(),
                )
            ]  # fmt: skip

        weight = edit.weight(self._kept((path, "bf16"), make)[0])
        source, name = f"{node.input[0]}.bf16", node.name
        if source not in edit.shared:
            edit.shared.add(source)
            edit.node("Cast", [node.input[0]], [source], f"{source}.cast", to=TensorProto.BFLOAT16)
        edit.node("MatMul", [source, weight], [f"{name}.half"], f"{name}.matmul")
        edit.node("Cast", [f"{name}.half"], [_product(node)], f"{name}.cast", to=TensorProto.FLOAT)
        _add_bias(edit, node)

    def _int4_weight_only(self, edit: _Edit, node: Any, path: str, _: Calibration | None) -> None:
        outputs, inputs = self._groups(path, "int4_weight_only")

        def make() -> list[Any]:
            found = quantize.int4_group(self._weight(path))
            packed = quantize.pack_nibbles(found.values).view(outputs, inputs // GROUP_SIZE, GROUP_SIZE // 2)
            zero = 8 - found.zero.float() / found.scale.float()
            return [
                _tensor(packed.numpy(), f"{path}.int4"),
                _tensor(found.scale.float().flatten().numpy(), f"{path}.int4_scale"),
                _tensor(zero.flatten().numpy(), f"{path}.int4_zero"),
            ]

        _four_bits(edit, node, self._kept((path, "int4"), make), K=inputs, N=outputs)

    def _int4_dynamic(self, edit: _Edit, node: Any, path: str, _: Calibration | None) -> None:
        outputs, inputs = self._groups(path, "int4_dynamic")

        def make() -> list[Any]:
            found = quantize.int4_affine(self._weight(path))
            packed = quantize.pack_nibbles(found.values).view(outputs, inputs // GROUP_SIZE, GROUP_SIZE // 2)
            return [
                _tensor(packed.numpy(), f"{path}.int4_whole"),
                _tensor(found.scale.flatten().numpy(), f"{path}.int4_whole_scale"),
                _tensor(quantize.pack_nibbles(found.zero).flatten().numpy(), f"{path}.int4_whole_zero"),
            ]

        # Level 4 is that which multiplies integers; the others convert the weight to float first.
        held = self._kept((path, "int4_whole"), make)
        _four_bits(edit, node, held, K=inputs, N=outputs, accuracy_level=4)

    def _groups(self, path: str, name: str) -> tuple[int, int]:
        """Return outputs and inputs of a linear layer that can be quantised in groups of its inputs."""
        outputs, inputs = _linear_only(self._weight(path), path)
        if inputs % GROUP_SIZE:
            raise ConversionError(f"{path}: {name} needs a multiple of {GROUP_SIZE} inputs, got {inputs}")
        return outputs, inputs


_WRITERS: dict[str, Callable[[GraphEditor, _Edit, Any, str, Calibration | None], None]] = {
    "bf16": GraphEditor._bf16,
    "int8_dynamic": GraphEditor._int8_dynamic,
    "int8_dynamic_smooth": GraphEditor._int8_dynamic_smooth,
    "int8_static": GraphEditor._int8_static,
    "int8_static_smooth": GraphEditor._int8_static_smooth,
    "int8_weight_only": GraphEditor._int8_weight_only,
    "int4_weight_only": GraphEditor._int4_weight_only,
    "int4_dynamic": GraphEditor._int4_dynamic,
}


def _tensor(values: NDArray[Any], name: str) -> Any:
    return numpy_helper.from_array(np.ascontiguousarray(values).reshape(values.shape), name)


def _linear_only(weight: torch.Tensor, path: str) -> tuple[int, int]:
    if weight.dim() != 2:
        raise ConversionError(f"{path}: this runtime has the format for linear layers only")
    return weight.shape[0], weight.shape[1]


def _four_bits(edit: _Edit, node: Any, held: list[Any], **attributes: int) -> None:
    """Compute with a weight of 4 bits in groups: its values, scales and zero points."""
    names = [edit.weight(tensor) for tensor in held]
    edit.node(
        "MatMulNBits", [node.input[0], *names], [_product(node)], f"{node.name}.matmul",
        domain=MICROSOFT, bits=4, block_size=GROUP_SIZE, **attributes,
    )  # fmt: skip
    _add_bias(edit, node)


def _product(node: Any) -> str:
    """Return where a matrix product goes: to the node's output, or to where its bias is added."""
    return f"{node.name}.product" if len(node.input) > 2 else str(node.output[0])


def _summed(node: Any) -> Any:
    """Return an `Add` as a `Sum`, the same numbers.

    ONNX Runtime makes a `Gemm` of a product to which something is added, where it can see that both are
    matrices or can be reshaped to them, and does so before it looks for products of quantised matrices: of
    which a `Gemm` with an addend in floating point is none.
    """
    if node.op_type != "Add":
        return node
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    changed.op_type = "Sum"
    return changed


def _add_bias(edit: _Edit, node: Any) -> None:
    if len(node.input) > 2:
        edit.node("Add", [_product(node), node.input[2]], [node.output[0]], f"{node.name}.bias")
