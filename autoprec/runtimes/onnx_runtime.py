"""ONNX Runtime on the CPU: each plan is an edit of one exported graph."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx
import onnxruntime
import torch

from autoprec.kernels.device import capability
from autoprec.kernels.registry import Level, Operation, Support
from autoprec.runtimes.graph_module import RunGraph
from autoprec.runtimes.graph_runtime import GraphRuntime, Ran
from autoprec.runtimes.onnx_export import quiet
from autoprec.runtimes.onnx_fusion import fuse_attention

_COMPUTED_BY: dict[str, dict[str, tuple[str, ...]]] = {
    "int8": {
        "int8_dynamic": ("MatMulIntegerToFloat", "DynamicQuantizeMatMul"),
        "int8_static": ("MatMulIntegerToFloat", "QLinearMatMul", "QGemm"),
    },
    "int8_smooth": {
        "int8_dynamic_smooth": ("MatMulIntegerToFloat", "DynamicQuantizeMatMul"),
        "int8_static_smooth": ("MatMulIntegerToFloat", "QLinearMatMul", "QGemm"),
    },
    "int8_rows": {"int8_weight_only": ("Gather",)},
    "int4": {"int4_weight_only": ("MatMulNBits",)},
    "int4_whole": {"int4_dynamic": ("MatMulNBits",)},
}
"""Operators that compute a format, by what the weight is held in."""
_INT8 = tuple(name for held in ("int8", "int8_smooth") for name in _COMPUTED_BY[held])


class OnnxRuntime(GraphRuntime):
    """Runs the ONNX graph by ONNX Runtime, with as many threads as torch has."""

    name = "onnxruntime"

    @classmethod
    def support(cls, operation: Operation, format_name: str) -> Support:
        """See `GraphRuntime.support`."""
        if format_name == "fp32":
            return Support(Level.NATIVE)
        if (operation, format_name) == (Operation.EMBEDDING, "int8_weight_only"):
            return Support(Level.NATIVE)
        if operation is not Operation.LINEAR:
            return Support(Level.REFUSED, f"ONNX Runtime: no such format for one {operation.value} layer")
        if format_name in _INT8 and "VNNI" not in capability():
            return Support(Level.REFUSED, "ONNX Runtime's u8×s8 products saturate on processors without VNNI")
        if format_name in (*_INT8, "int4_weight_only", "int4_dynamic"):
            return Support(Level.NATIVE)
        if format_name in ("fp16", "bf16"):
            return Support(Level.REFUSED, "ONNX Runtime has no such product: it converts to fp32 and back")
        return Support(Level.REFUSED, "ONNX Runtime has no CPU kernel for it")

    def tailored(self, proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto | None:
        """See `GraphRuntime.tailored`."""
        try:
            with quiet():
                return fuse_attention(proto, folder)
        except Exception:  # the rewrites are another project's, and the graph runs without them
            return None

    def start(self, file: Path) -> tuple[RunGraph, Ran]:
        """See `GraphRuntime.start`."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        # Threads that went on spinning after a run would take the time of whatever runs next.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        with tempfile.TemporaryDirectory() as folder:
            built = Path(folder) / "built.onnx"
            options.optimized_model_filepath = str(built)
            session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
            # Weights that were not changed are still referred to where they were, and not read.
            nodes = onnx.load(str(built), load_external_data=False).graph.node
            readers: dict[str, str] = {name: node.op_type for node in nodes for name in node.input}
        names = [output.name for output in session.get_outputs()]

        def ran(path: str, _: Sequence[str], asked: str) -> str:
            for held, formats in _COMPUTED_BY.items():
                operator = readers.get(f"{path}.{held}")
                if operator is not None:
                    return asked if operator in formats.get(asked, ()) else f"{held} by {operator}"
            return "fp32"

        return (lambda feeds: session.run(names, feeds)), ran
