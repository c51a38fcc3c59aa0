"""What the runtimes that work on exported graphs share: export once, edit, try apart, run, read back."""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import onnx
import torch
from google.protobuf.message import DecodeError
from torch import nn

from autoprec.apply import calibration_of
from autoprec.comparing import refuse_difference
from autoprec.errors import CandidateError, RuntimeRefusedError, one_line
from autoprec.kernels.registry import Operation, Support
from autoprec.plan import Plan, UnitPlan
from autoprec.runtimes.available import DATA_FILE, model_files
from autoprec.runtimes.calls import Calls, Form, watch_calls
from autoprec.runtimes.graph_module import GraphModule, RunGraph
from autoprec.runtimes.onnx_edit import GraphEditor
from autoprec.runtimes.onnx_export import export_graph
from autoprec.runtimes.probe import Probe
from autoprec.runtimes.runtime import Executable, Runtime
from autoprec.runtimes.structure import build, flatten, places
from autoprec.runtimes.weight_file import WeightFile, check_places, weight_bytes

Ran = Callable[[str, Sequence[str], str], str]
"""From a module's path, the names of its nodes in the exported graph and the format asked for, the format
that was found in the graph that was built."""

PLAN_KEY = "autoprec.plan"
"""Entry of a written graph's metadata: the key of its plan."""


@dataclass(frozen=True)
class Exported:
    """A workload's model as graphs.

    Attributes:
        calls: How the model is called.
        editors: One for the graph of each form of `calls`.
        weights: Holds the weights of all of them, and of the candidates.
    """

    calls: Calls
    editors: tuple[GraphEditor, ...]
    weights: WeightFile

    @property
    def file_names(self) -> list[str]:
        """Name of the file that a graph is written to, for each form."""
        return model_files(len(self.editors))


class Export:
    """One workload's exported graphs, made when first asked for and shared by the runtimes.

    Args:
        model: The model as it came.
        modules: Path and operation of every tunable module.
        run_examples: Runs the model as it came on all that is timed.
        judge: Does all else that the workload does with a model, on the model as it came.
    """

    def __init__(
        self,
        model: nn.Module,
        modules: Sequence[tuple[str, Operation]],
        run_examples: Callable[[], object],
        judge: Callable[[], object],
    ) -> None:
        self._model = model
        self._modules = modules
        self._run_examples = run_examples
        self._judge = judge
        self._exported: Exported | None = None
        self._refused = ""

    def get(self) -> Exported:
        """Return the exported graphs.

        Raises:
            RuntimeRefusedError: The model does not export.
        """
        if self._refused:
            raise RuntimeRefusedError(self._refused)
        if self._exported is None:
            try:
                self._exported = self._export()
            except RuntimeRefusedError as error:
                self._refused = str(error)
                raise
        return self._exported

    def _export(self) -> Exported:
        odd = {str(p.dtype) for p in self._model.parameters()} - {"torch.float32"}
        if odd:
            raise RuntimeRefusedError(f"the model holds {sorted(odd)[0]}; an export starts from fp32")
        paths = [path for path, _ in self._modules]
        calls = watch_calls(self._model, paths, self._run_examples, self._judge)
        weights = WeightFile()
        pieces: dict[tuple[object, ...], list[object]] = {}
        editors = tuple(
            GraphEditor(export_graph(self._model, form, self._modules, weights), self._model, weights, pieces)
            for form in calls.forms
        )
        return Exported(calls, editors, weights)


class GraphRuntime(Runtime):
    """A runtime that runs ONNX graphs; its name is that of the distribution that it needs."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self._exported: Exported | None = None
        self.written: Path | None = None
        """Folder of files that were written for a plan: they are loaded instead of being made from it."""
        self._probe = Probe(self.name)

    @property
    def versions(self) -> dict[str, str]:
        """See `Runtime.versions`."""
        return {name: version(name) for name in (self.name, "onnx", "onnx-ir", "onnxscript")}

    @property
    def exported(self) -> Exported:
        """The graphs that candidates are edits of.

        Raises:
            RuntimeRefusedError: The model does not export.
        """
        if self._exported is None:
            plain = self._export.get()
            editors = tuple(self._tailored(editor, plain.weights.folder) for editor in plain.editors)
            self._exported = plain if editors == plain.editors else replace(plain, editors=editors)
        return self._exported

    def tailored(self, proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto | None:
        """Return an exported graph as this runtime runs it fastest, with the same results.

        The nodes of tunable modules keep their names. `None`: it is best as it is.

        Args:
            proto: The graph; it is left as it is.
            folder: Where the file lies that its weights are in.
        """
        return None

    def _tailored(self, editor: GraphEditor, folder: Path) -> GraphEditor:
        proto = self.tailored(editor.exported.proto, folder)
        return editor if proto is None else editor.on(proto)

    @classmethod
    @abstractmethod
    def support(cls, operation: Operation, format_name: str) -> Support:
        """Say whether this runtime can run a layer in a format on this machine, and why not."""

    def prepare(self) -> dict[str, str]:
        """Export, and compare the fp32 graphs with the model as it came; called before anything is built.

        Returns:
            Path to why this runtime cannot tune a module: it runs as it came. One that is not found in the
            graph of any form in which it runs is not tuned; in a form that does not reach it, nothing is to
            be found.

        Raises:
            RuntimeRefusedError: The model cannot run here; says why.
        """
        exported = self.exported
        try:
            self._compare(exported)
        except Exception as error:
            plain = self._export.get()
            if exported is plain:
                raise _refusal_of(error) from error
            # What was tailored may be at fault: without it the runtime is slower and no less right.
            self._exported = plain
            return self.prepare()
        missing: dict[str, str] = {}
        for editor in exported.editors:
            missing |= editor.exported.missing
        return missing

    def build(self, model: nn.Module, plan: Plan) -> Executable:
        """See `Runtime.build`: `model` is the one that was exported."""
        return self._build(self.exported, plan.units, plan.key)

    def _compare(self, exported: Exported) -> None:
        """Compare the fp32 graphs with the model as it came.

        Raises:
            RuntimeRefusedError: They differ; or whatever the runtime raises.
        """
        executable = self._build(exported, (), "")
        try:
            for form in exported.calls.forms:
                _compare(executable.model, form)
        finally:
            executable.close()

    def _build(self, exported: Exported, units: Sequence[UnitPlan], plan_key: str) -> GraphExecutable:
        formats = {module.path: unit.format for unit in units for module in unit.modules}
        calibrations = {module.path: calibration_of(module) for unit in units for module in unit.modules}
        written = None if self.written is None else [self.written / name for name in exported.file_names]
        graphs = (
            [editor.candidate(formats, calibrations) for editor in exported.editors]
            if written is None
            else [_read(file) for file in written]
        )

        def load(index: int) -> tuple[RunGraph, dict[str, tuple[str, str]]]:
            graph = exported.editors[index].exported
            inputs = dict(zip(graph.form.inputs, graph.form.calls[0].tensors, strict=True))
            file = exported.weights.new_file() if written is None else written[index]
            try:
                if written is None:
                    onnx.save_model(graphs[index], str(file))
                self._probe.check(file, inputs)
                run, ran = self.start(file)
            finally:
                if written is None:
                    file.unlink(missing_ok=True)
            found: dict[str, tuple[str, str]] = {}
            for path in formats.keys() & graph.form.reached:
                if path in graph.missing and formats[path] == "fp32":
                    found[path] = "fp32", self.name  # part of a node that no plan changes
                    continue
                own = graph.nodes.get(path, ())
                known = [*own, *(alias for node in own for alias in graph.aliases[node])]
                found[path] = ran(path, known, formats[path]), self.name
            return run, found

        return GraphExecutable(exported, graphs, load, plan_key)

    @abstractmethod
    def start(self, file: Path) -> tuple[RunGraph, Ran]:
        """Load a graph: return what runs it, and what tells the format that a module really runs in.

        Neither needs the file afterwards.
        """


class GraphExecutable(Executable):
    """A candidate: a graph for each form, loaded when it is first called in it; those that are timed at once.

    Its bytes are those of the weights of the forms that are timed, each counted once: other forms are for
    judging, and what is deployed may not have them.

    Args:
        exported: What it is a candidate of.
        graphs: Its graph in each form.
        load: From the index of a form, what runs its graph, and module path to (format, implementation) of
            the modules that run in it.
        plan_key: `Plan.key` of the plan, which its files name.

    Raises:
        CandidateError: A graph cannot be loaded.
    """

    def __init__(
        self,
        exported: Exported,
        graphs: Sequence[onnx.ModelProto],
        load: Callable[[int], tuple[RunGraph, dict[str, tuple[str, str]]]],
        plan_key: str,
    ) -> None:
        forms = exported.calls.forms
        self._graphs = graphs
        self._plan_key = plan_key
        self._names = exported.file_names
        self._weights = exported.weights
        self._load_graph = load
        self._applied: dict[str, tuple[str, str]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: list[Path] = []
        self._module = GraphModule(exported.calls, self._load)
        self.model: nn.Module = self._module
        for index, form in enumerate(forms):
            if form.timed:
                self._module.load(index)
        timed = [graph for graph, form in zip(graphs, forms, strict=True) if form.timed]
        self._held = weight_bytes(timed)

    def _load(self, index: int) -> RunGraph:
        run, found = self._load_graph(index)
        for path, applied in found.items():
            known = self._applied.setdefault(path, applied)
            if known != applied:
                raise CandidateError(
                    f"not applied as asked: {path} runs {known[0]} in one way of calling the model "
                    f"and {applied[0]} in another"
                )
        return run

    def applied(self) -> dict[str, tuple[str, str]]:
        """See `Executable.applied`: read back from the forms that are timed; others have to agree."""
        return self._applied

    def idle(self) -> frozenset[str]:
        """See `Executable.idle`."""
        return frozenset() if self._module.ran else frozenset(self._applied)

    def held_bytes(self) -> int:
        """See `Executable.held_bytes`."""
        return self._held

    def artefacts(self) -> list[Path]:
        """Return `model.onnx`, and `model-2.onnx`, … where the model is called in more than one way.

        The form that the first example input runs comes first. Several share their weights in
        `model.onnx.data`, which has to lie beside them.
        """
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="autoprec-")
            graphs = dict(zip(self._names, self._graphs, strict=True))
            self._files = self._weights.write(graphs, Path(self._folder.name), {PLAN_KEY: self._plan_key})
        return self._files

    def close(self) -> None:
        """See `Executable.close`."""
        self.model = nn.Module()
        del self._module
        if self._folder is not None:
            self._folder.cleanup()


def plan_of_file(file: Path) -> str:
    """Return the key of the plan that a model file was written for; empty where it names none.

    Raises:
        CandidateError: It cannot be read.
    """
    return next((entry.value for entry in _read(file).metadata_props if entry.key == PLAN_KEY), "")


def _read(file: Path) -> onnx.ModelProto:
    """Read a graph that was written, and check where it says that its weights lie: it is anybody's file."""
    try:
        graph = onnx.load(str(file), load_external_data=False)
        if not graph.graph.output:
            raise ValueError("it holds no graph")  # nothing at all is a message too, an empty one
        check_places(graph, file.parent / DATA_FILE)
    except (OSError, ValueError, DecodeError) as error:
        raise CandidateError(f"{file.name} beside the plan cannot be read: {one_line(error)}") from error
    return graph


def _refusal_of(error: Exception) -> RuntimeRefusedError:
    if isinstance(error, RuntimeRefusedError):
        return error
    return RuntimeRefusedError(f"it does not run the exported model: {one_line(error)}")


def _compare(model: nn.Module, form: Form) -> None:
    """Compare a graph with the model as it came, on the calls of a form."""
    for call in form.calls:
        if call.results is None:
            continue
        given = build(form.arguments, call.tensors)
        with torch.inference_mode():
            _, found = flatten(model(**given), places(given))
        for name in form.changed:
            found += flatten(given[name])[1]
        refuse_difference(found, call.results, "before any quantisation")
