"""NNCF `quantize_with_accuracy_control`: int8 in OpenVINO, then layers back until quality holds."""

from __future__ import annotations

import re
from typing import Any

import nncf
import openvino
import torch

from benchmarks.peers.contract import Flat, Found, Restored, Task, restored, tensors_of

NAME = "nncf"
PACKAGE = "nncf"
CALL = "quantize_with_accuracy_control of the OpenVINO model"


def search(task: Task) -> Found:
    """Quantise, judged by the workload's own quality."""
    model = task.workload.build_model()
    example = tensors_of(task.batches[0])
    graph = openvino.convert_model(Flat(model), example_input=example)
    shell = restored(lambda *tensors: tensors[0], task, model)

    def judge(compiled: Any, _: Any) -> tuple[float, list[float]]:
        found = task.quality(_runner(compiled, shell))
        return found, [found]  # without values for each item it would judge once more to collect them

    data = nncf.Dataset([_arrays(batch) for batch in [task.inputs, *task.batches]])
    transformer = any(isinstance(part, torch.nn.LayerNorm) for part in model.modules())
    made = nncf.quantize_with_accuracy_control(
        graph,
        calibration_dataset=data,
        validation_dataset=nncf.Dataset([_arrays(task.inputs)]),  # the judge brings its own
        validation_fn=judge,
        max_drop=task.limit,
        drop_type=nncf.DropType.ABSOLUTE,
        model_type=nncf.ModelType.TRANSFORMER if transformer else None,
        advanced_accuracy_restorer_parameters=nncf.AdvancedAccuracyRestorerParameters(
            max_num_iterations=task.evaluations, num_ranking_workers=1
        ),
    )
    choices, beyond = read_choices(made)
    return Found(
        _runner(_compiled(made), shell),
        choices,
        f"OpenVINO {openvino.__version__.split('-')[0]}",
        beyond=beyond,
    )


def _compiled(graph: Any) -> Any:
    threads = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    return openvino.Core().compile_model(graph, "CPU", {"PERFORMANCE_HINT": "LATENCY", **threads})


def _runner(compiled: Any, shell: Restored) -> Restored:
    request = compiled.create_infer_request() if hasattr(compiled, "create_infer_request") else None

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        arrays = [tensor.numpy() for tensor in tensors]
        found = request.infer(arrays) if request is not None else compiled(arrays)
        return torch.from_numpy(found[0].copy())

    return Restored(run, shell.names, shell.output)


def _arrays(batch: Any) -> tuple[Any, ...]:
    return tuple(tensor.numpy() for tensor in tensors_of(batch))


def read_choices(graph: Any) -> tuple[dict[str, str], dict[str, int]]:
    """Return module path to recipe, and the quantised operations that belong to no module, from the graph."""
    choices: dict[str, str] = {}
    beyond: dict[str, int] = {}
    for node in graph.get_ordered_ops():
        kind = node.get_type_name()
        if kind == "ScaledDotProductAttention":
            beyond[kind] = beyond.get(kind, 0) + _rounded(node.input_value(0).get_node())
        if kind not in ("MatMul", "Convolution", "Gather"):
            continue
        data, weight = (0, 1) if kind != "Gather" else (1, 0)
        held = _chain(node.input_value(weight).get_node(), _WEIGHT)
        module = re.match(r"__module\.model\.(.+?)/", node.get_friendly_name())
        given = _chain(node.input_value(data).get_node(), _SHAPING)[-1]
        rounded = _rounded(node.input_value(data).get_node())
        if module is None or held[-1].get_type_name() != "Constant":
            if rounded:
                beyond[kind] = beyond.get(kind, 0) + 1
        elif _narrow(held):
            before = given.input_value(0).get_node().get_friendly_name() if rounded else ""
            static = "int8 static smooth" if "smooth_quant" in before else "int8 static"
            choices[module[1]] = static if rounded else "int8 weights"
    return choices, {kind: count for kind, count in beyond.items() if count}


_WEIGHT = ("FakeQuantize", "Convert", "Subtract", "Multiply", "Transpose", "Reshape")
_SHAPING = ("Transpose", "Reshape")


def _chain(node: Any, through: tuple[str, ...]) -> list[Any]:
    """Return a node and those that it follows from, first inputs only, up to one of another type."""
    found = [node]
    while found[-1].get_type_name() in through:
        found.append(found[-1].input_value(0).get_node())
    return found


def _rounded(node: Any) -> bool:
    """Say whether a tensor that is computed is rounded where it is read."""
    return bool(_chain(node, _SHAPING)[-1].get_type_name() == "FakeQuantize")


def _narrow(weight: list[Any]) -> bool:
    """Say whether a weight is held in 8 bits, or rounded to them."""
    rounded = any(node.get_type_name() == "FakeQuantize" for node in weight)
    return rounded or weight[-1].get_element_type().get_type_name() in ("i8", "u8")
