"""Attention as one operator of ONNX Runtime's: faster, and the same numbers.

The exporter writes attention as reshapes, transposes and products; ONNX Runtime's own optimiser knows only
the patterns of an older exporter. These are onnxscript's rewrites for the new one. Linear layers keep their
nodes, so a plan means the same modules.
"""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
from onnx import ModelProto
from onnx_ir.external_data import set_base_dir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, ShapeInferencePass
from onnxscript.optimizer import optimize
from onnxscript.rewriter.ort_fusions import shape_optimization
from onnxscript.rewriter.ort_fusions.mha import fuse_mha1, fuse_mha2
from onnxscript.rewriter.ort_fusions.mha_bias import fuse_mha_bias
from onnxscript.rewriter.ort_fusions.sdpa import fuse_sdpa


def fuse_attention(proto: ModelProto, folder: Path) -> ModelProto | None:
    """Return the ONNX model with each attention as one node, or `None` where none is found.

    Args:
        proto: The model; it is left as it is.
        folder: Where the file lies that its weights are in.
    """
    model = ir.from_proto(proto)
    set_base_dir(model.graph, folder)
    ShapeInferencePass()(model)
    optimize(model)
    shape_optimization.rules.apply_to_model(model)
    optimize(model)
    CommonSubexpressionEliminationPass()(model)
    fuse_sdpa(model, apply_shape_inference=True)
    if not fuse_mha1(model) + fuse_mha2(model):
        return None
    fuse_mha_bias(model)
    optimize(model)
    return ir.to_proto(model)
