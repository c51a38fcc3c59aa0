"""The runtimes by name; each is imported when it is asked for, and named when it is not installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from autoprec.errors import RuntimeRefusedError, one_line
from autoprec.plan import COMPILE, EAGER

if TYPE_CHECKING:
    from torch import nn

    from autoprec.kernels.registry import Operation
    from autoprec.runtimes.graph_runtime import GraphRuntime

GRAPH_RUNTIMES = {
    "onnxruntime": ("autoprec.runtimes.onnx_runtime", "OnnxRuntime", "onnx"),
    "openvino": ("autoprec.runtimes.open_vino", "OpenVinoRuntime", "openvino"),
}
"""Name to module, class, and the extra that installs what it needs."""
RUNTIMES = (EAGER, COMPILE, *GRAPH_RUNTIMES)
MODEL_FILE = "model.onnx"
"""What a graph runtime's plan is written as, beside the plan: the graph that the first example input runs."""
DATA_FILE = "model.onnx.data"
"""Weights that the files of one plan share, or that are too large for one file."""
_NEEDED = ("onnx", "onnx_ir", "onnxscript")


class GraphRuntimes:
    """Makes the graph runtimes of one workload, which share one export.

    Args:
        model: The model as it came.
        modules: Path and operation of every tunable module.
        run_examples: See `autoprec.runtimes.graph_runtime.Export`.
        judge: The same.
    """

    def __init__(
        self,
        model: nn.Module,
        modules: Sequence[tuple[str, Operation]],
        run_examples: Callable[[], object],
        judge: Callable[[], object],
    ) -> None:
        self._given = (model, modules, run_examples, judge)
        self._export: Any = None

    def get(self, name: str) -> GraphRuntime:
        """Return a runtime.

        Raises:
            RuntimeRefusedError: It is not installed, or there is none of that name.
        """
        kind = graph_runtime_class(name)
        if self._export is None:
            shared = importlib.import_module("autoprec.runtimes.graph_runtime")
            self._export = shared.Export(*self._given)
        return kind(self._export)


def model_files(forms: int) -> list[str]:
    """Return the names of the files of a plan's graphs, one for each way of calling the model."""
    return [MODEL_FILE, *(f"model-{number}.onnx" for number in range(2, forms + 1))]


def graph_runtime_class(name: str) -> type[GraphRuntime]:
    """Return the class of a runtime.

    Raises:
        RuntimeRefusedError: It is not installed or does not import, or there is none of that name.
    """
    if name not in GRAPH_RUNTIMES:
        raise RuntimeRefusedError(f"unknown runtime {name!r}; known: {', '.join(RUNTIMES)}")
    module, kind, extra = GRAPH_RUNTIMES[name]
    lacking = [each for each in (name, *_NEEDED) if importlib.util.find_spec(each) is None]
    if lacking:
        raise RuntimeRefusedError(
            f"{name} needs {', '.join(lacking)}, not installed: pip install 'autoprec[{extra}]'"
        )
    try:
        found: type[GraphRuntime] = getattr(importlib.import_module(module), kind)
    except Exception as error:  # whatever a broken installation raises
        raise RuntimeRefusedError(
            f"{name} is installed and does not import: {one_line(error)}; install it anew: "
            f"pip install --force-reinstall 'autoprec[{extra}]'"
        ) from error
    return found
