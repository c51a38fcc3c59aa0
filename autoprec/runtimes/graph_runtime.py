"""What the runtimes that work on an exported graph share: export once, edit, try apart, run, read back."""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

from autoprec.apply import calibration_of
from autoprec.errors import RuntimeRefusedError
from autoprec.kernels.registry import Operation, Support
from autoprec.plan import Plan, UnitPlan
from autoprec.runtimes.calls import output_tensors, watch_calls
from autoprec.runtimes.graph_module import GraphModule, RunGraph
from autoprec.runtimes.onnx_edit import GraphEditor, graph_bytes
from autoprec.runtimes.onnx_export import ExportedGraph, export_graph
from autoprec.runtimes.probe import Probe
from autoprec.runtimes.runtime import Executable, Runtime

Ran = Callable[[str, Sequence[str], str], str]
"""From a module's path, the names of its nodes in the exported graph and the format asked for, the format
that was found in the graph that was built."""

LARGEST_DIFFERENCE = 1e-3
"""Relative L2 difference of an exported fp32 graph's outputs beyond which the runtime is refused."""


class Export:
    """One workload's exported graph, made when first asked for and shared by the runtimes.

    Args:
        model: The model as it came.
        modules: Path and operation of every tunable module.
        exercise: Runs everything the workload does with a model, on the model as it came.
    """

    def __init__(
        self, model: nn.Module, modules: Sequence[tuple[str, Operation]], exercise: Callable[[], object]
    ) -> None:
        self._model = model
        self._modules = modules
        self._exercise = exercise
        self._editor: GraphEditor | None = None
        self._refused = ""

    def editor(self) -> GraphEditor:
        """Return the editor of the exported graph.

        Raises:
            RuntimeRefusedError: The model does not export.
        """
        if self._refused:
            raise RuntimeRefusedError(self._refused)
        if self._editor is None:
            try:
                odd = {str(p.dtype) for p in self._model.parameters()} - {"torch.float32"}
                if odd:
                    raise RuntimeRefusedError(f"the model holds {sorted(odd)[0]}; an export starts from fp32")
                signature = watch_calls(self._model, self._exercise)
                exported = export_graph(self._model, signature, self._modules)
            except RuntimeRefusedError as error:
                self._refused = str(error)
                raise
            self._editor = GraphEditor(exported, self._model)
        return self._editor


class GraphRuntime(Runtime):
    """A runtime that runs an ONNX graph; its name is that of the distribution that it needs."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self._editor: GraphEditor | None = None
        self._probe = Probe(self.name)

    @property
    def versions(self) -> dict[str, str]:
        """See `Runtime.versions`."""
        return {self.name: version(self.name)}

    @property
    def exported(self) -> ExportedGraph:
        """The graph that candidates are edits of.

        Raises:
            RuntimeRefusedError: The model does not export.
        """
        return self._graph().exported

    def tailored(self, proto: Any) -> Any | None:
        """Return the exported ONNX model as this runtime runs it fastest, with the same results.

        The nodes of tunable modules keep their names. `None`: it is best as it is.
        """
        return None

    @abstractmethod
    def support(self, operation: Operation, format_name: str) -> Support:
        """Say whether this runtime can run a layer in a format on this machine, and why not."""

    def prepare(self) -> dict[str, str]:
        """Export, and compare the fp32 graph with the model as it came; called before anything is built.

        Returns:
            Module path to why this runtime cannot tune it: it runs as it came.

        Raises:
            RuntimeRefusedError: The model cannot run here; says why.
        """
        editor = self._graph()
        exported = editor.exported
        executable = self._build(editor, ())
        try:
            for call in exported.signature.calls:
                if call.output is None:
                    continue
                with torch.inference_mode():
                    found = output_tensors(executable.model(**call.tensors))
                for mine, theirs in zip(found, output_tensors(call.output), strict=True):
                    scale = float(torch.linalg.vector_norm(theirs.float())) or 1.0
                    gap = float(torch.linalg.vector_norm(mine.float() - theirs.float())) / scale
                    if not gap <= LARGEST_DIFFERENCE:
                        raise RuntimeRefusedError(
                            f"before any quantisation its outputs differ from the model's by {gap:.2g} "
                            f"(relative L2; at most {LARGEST_DIFFERENCE:g} is taken)"
                        )
        finally:
            executable.close()
        return exported.missing

    def build(self, model: nn.Module, plan: Plan) -> Executable:
        """See `Runtime.build`: `model` is the one that was exported."""
        return self._build(self._graph(), plan.units)

    def _graph(self) -> GraphEditor:
        if self._editor is None:
            plain = self._export.editor()
            proto = self.tailored(plain.exported.proto)
            self._editor = plain if proto is None else plain.on(proto)
        return self._editor

    def _build(self, editor: GraphEditor, units: Sequence[UnitPlan]) -> GraphExecutable:
        formats = {module.path: unit.format for unit in units for module in unit.modules}
        calibrations = {module.path: calibration_of(module) for unit in units for module in unit.modules}
        proto = editor.candidate(formats, calibrations)
        folder = tempfile.TemporaryDirectory(prefix="autoprec-")
        try:
            file = Path(folder.name) / "model.onnx"
            onnx.save_model(proto, str(file))
            self._probe.check(file, editor.exported.signature.calls[0].tensors)
            run, ran = self.start(file)
        except BaseException:
            folder.cleanup()
            raise
        aliases = editor.exported.aliases
        applied = {
            path: (ran(path, [*own, *(alias for node in own for alias in aliases[node])], name), self.name)
            for path, name in formats.items()
            for own in (editor.exported.nodes.get(path, ()),)
        }
        graph = GraphModule(editor.exported.signature, run)
        return GraphExecutable(graph, applied, graph_bytes(proto), folder)

    @abstractmethod
    def start(self, file: Path) -> tuple[RunGraph, Ran]:
        """Load a graph: return what runs it, and what tells the format that a module really runs in."""


class GraphExecutable(Executable):
    """A graph that is loaded.

    Attributes:
        folder: Holds the files of the artefact while the executable lives.
    """

    def __init__(
        self,
        model: GraphModule,
        applied: dict[str, tuple[str, str]],
        held: int,
        folder: tempfile.TemporaryDirectory[str],
    ) -> None:
        self.model: nn.Module = model
        self._graph = model
        self._applied = applied
        self._held = held
        self.folder = folder

    def applied(self) -> dict[str, tuple[str, str]]:
        """See `Executable.applied`."""
        return self._applied

    def idle(self) -> frozenset[str]:
        """See `Executable.idle`."""
        return frozenset() if self._graph.ran else frozenset(self._applied)

    def held_bytes(self) -> int:
        """See `Executable.held_bytes`."""
        return self._held

    def artefacts(self) -> list[Path]:
        """See `Executable.artefacts`."""
        return sorted(Path(self.folder.name).iterdir())

    def close(self) -> None:
        """See `Executable.close`."""
        self.model = nn.Module()
        del self._graph
        self.folder.cleanup()
