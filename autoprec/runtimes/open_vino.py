"""OpenVINO on the CPU: reads the same edits of one exported graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino
import torch

from autoprec.kernels.device import capability
from autoprec.kernels.registry import Level, Operation, Support
from autoprec.runtimes.graph_module import RunGraph
from autoprec.runtimes.graph_runtime import GraphRuntime, Ran

_FORMATS = {
    Operation.LINEAR: {"fp32", "int8_static", "int8_static_smooth", "int8_weight_only", "int4_weight_only"},
    Operation.CONV2D: {"fp32", "int8_static"},
    Operation.EMBEDDING: {"fp32", "int8_weight_only"},
}
_PLAIN = {"int8_static_smooth": "int8_static"}
_WANTED = ("runtimePrecision", "originalLayersNames", "layerType")
_LAYERS = ("FullyConnected", "MatMul", "Convolution", "Gather", "Subgraph")
_WHOLE = {"f32", "i32", "i64"}


class OpenVinoRuntime(GraphRuntime):
    """Compiles the ONNX graph by OpenVINO in single precision, with as many threads as torch has."""

    name = "openvino"

    @classmethod
    def support(cls, operation: Operation, format_name: str) -> Support:
        """See `GraphRuntime.support`."""
        if format_name in _FORMATS[operation]:
            return Support(Level.NATIVE)
        if (operation, format_name) == (Operation.LINEAR, "bf16"):
            # Elsewhere it would be computed in single precision, between two roundings.
            if "BF16" in capability():
                return Support(Level.NATIVE)
            return Support(Level.REFUSED, "OpenVINO: this processor has no bfloat16 products")
        return Support(Level.REFUSED, f"OpenVINO: no such format for one {operation.value} layer on a CPU")

    def start(self, file: Path) -> tuple[RunGraph, Ran]:
        """See `GraphRuntime.start`."""
        compiled = openvino.Core().compile_model(
            str(file),
            "CPU",
            {
                # On some processors the default is bfloat16, which would not be the numbers of the model.
                "INFERENCE_PRECISION_HINT": "f32",
                # By default inputs of layers with compressed weights are rounded to 8 bits as well, silently.
                "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
                "PERFORMANCE_HINT": "LATENCY",
                "NUM_STREAMS": 1,
            },
        )
        request = compiled.create_infer_request()
        outputs = list(compiled.outputs)
        computed = _computed(compiled.get_runtime_model())

        def run(feeds: dict[str, Any]) -> list[Any]:
            found = request.infer(feeds, share_inputs=True)
            return [found[output] for output in outputs]

        def ran(path: str, nodes: Sequence[str], asked: str) -> str:
            names = [
                known for name in nodes for known in (f"{name}.bias", f"{name}.matmul", f"{name}.rows", name)
            ]
            found = next((computed[name] for name in names if name in computed), "nothing that was found")
            # Smoothing is a product before the rounding and fused away: the arithmetic is int8_static's.
            return asked if found == _PLAIN.get(asked) else found

        return run, ran


def _computed(built: Any) -> dict[str, str]:
    """Return, from the compiled graph, the names of what was compiled into a node to its format."""
    found: dict[str, str] = {}
    for node in built.get_ordered_ops():
        info = {key: str(value.astype(str)) for key, value in node.get_rt_info().items() if key in _WANTED}
        if info.get("layerType") not in _LAYERS:
            continue
        sources = [port.get_source_output() for port in node.inputs()]
        types = [source.get_element_type().get_type_name() for source in sources]
        # A look-up reads its table first; what multiplies reads its weight second.
        held = types[0] if info["layerType"] == "Gather" else types[1] if len(types) > 1 else ""
        computed = _format(info.get("runtimePrecision", ""), held)
        if info["layerType"] == "Subgraph" and set(types) - _WHOLE:
            computed = "a fused subgraph"  # which of its parts holds what is not told
        # What was fused away may survive only in the name of a constant: `node/transpose_b`.
        # A layer after a product has only the product's name there, and still its own as a node.
        names = [node.get_friendly_name(), *info.get("originalLayersNames", "").split(",")]
        names += [source.get_node().get_friendly_name() for source in sources[1:]]
        for name in names:
            found.setdefault(name.split("/")[0], computed)
    return found


def _format(arithmetic: str, held: str) -> str:
    """Return a format from the number types of a node's arithmetic and of its weight."""
    if held in ("i8", "u8"):
        return "int8_static" if arithmetic == "u8" else "int8_weight_only"
    if held in ("i4", "u4"):
        return "int4_weight_only"
    return "fp32" if arithmetic == "f32" else arithmetic
