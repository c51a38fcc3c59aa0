"""Intel Neural Compressor `autotune`: its own int8 configurations in turn, until one keeps the limit."""

from __future__ import annotations

from typing import Any

import torch
from neural_compressor.torch.export import export
from neural_compressor.torch.quantization import (
    DynamicQuantConfig,
    INT8StaticQuantConfig,
    TuningConfig,
    autotune,
)
from torch import nn

from benchmarks.peers.contract import Flat, Found, Restored, Task, restored, tensors_of

NAME = "inc"
PACKAGE = "neural-compressor-pt"
CALL = "autotune of the exported model over its own sets of INT8StaticQuantConfig and DynamicQuantConfig"


def search(task: Task) -> Found:
    """Export the model, and let it go through its configurations."""
    model = task.workload.build_model()
    example = tensors_of(task.batches[0])
    exported = export(Flat(model), example, dynamic_shapes=(_dynamic(task, example),))
    # What nobody reads (BERT's pooler) has no output to annotate: its quantiser raises an IndexError there.
    exported.graph.eliminate_dead_code()
    exported.recompile()
    shell = restored(lambda *tensors: tensors[0], task, model)

    def calibrate(prepared: nn.Module) -> None:
        for batch in task.batches:
            prepared(*tensors_of(batch))

    # Its tolerance is relative to the quality of the model as it came; the limit here is absolute.
    baseline = task.quality(model)
    made = autotune(
        exported,
        TuningConfig(
            config_set=[
                INT8StaticQuantConfig.get_config_set_for_tuning(),
                DynamicQuantConfig.get_config_set_for_tuning(),
            ],
            tolerable_loss=task.limit / baseline,
            max_trials=task.evaluations,
        ),
        eval_fn=lambda candidate: task.quality(Restored(candidate, shell.names, shell.output)),
        run_fn=calibrate,
        example_inputs=example,
    )
    return Found(
        Restored(made, shell.names, shell.output),
        read_choices(made, model),
        f"torch.compile of the int8 graph, torch {torch.__version__}",
        fast=lambda: Restored(_compiled(made, tensors_of(task.inputs)), shell.names, shell.output),
    )


def _dynamic(task: Task, example: tuple[torch.Tensor, ...]) -> tuple[dict[int, Any], ...]:
    """Return the dimensions that differ between batches, as `torch.export` takes them."""
    seen = [tensors_of(batch) for batch in [task.inputs, *task.batches]]
    axes = [
        {
            axis: torch.export.Dim.DYNAMIC
            for axis in range(tensor.dim())
            if len({batch[index].shape[axis] for batch in seen}) > 1
        }
        for index, tensor in enumerate(example)
    ]
    return tuple(axes)


def _compiled(made: nn.Module, example: tuple[torch.Tensor, ...]) -> Any:
    from torchao.quantization.pt2e.lowering import lower_pt2e_quantized_to_x86

    with torch.no_grad():
        lowered = lower_pt2e_quantized_to_x86(made, example)
        return torch.compile(lowered, dynamic=False, options={"freezing": True})


def read_choices(graph: nn.Module, model: nn.Module) -> dict[str, str]:
    """Return module path to recipe, from what feeds each layer of the converted graph."""
    weights = {f"model_{path}_weight".replace(".", "_"): path for path, _ in model.named_modules()}
    choices = {}
    for node in graph.graph.nodes:
        if node.op != "call_function" or not any(
            name in str(node.target) for name in ("aten.linear", "aten.conv2d", "aten.addmm")
        ):
            continue
        data, weight = node.args[0], node.args[1]
        held = weight
        while held.op != "get_attr":
            held = held.args[0]
        path = weights.get(str(held.target).replace(".", "_"))
        if path is None or held is weight:
            continue
        if "dequantize" not in str(data.target):
            choices[path] = "int8 weights"
        else:
            scale = data.args[1]
            fixed = not isinstance(scale, torch.fx.Node) or scale.op == "get_attr"
            choices[path] = "int8 static" if fixed else "int8 dynamic"
    return choices
