"""Make a workload ready to be measured: load it, check that it works as it came, find its units."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from autoprec.envs.baseline import BaselineFigures, observe_baseline
from autoprec.envs.measure import Measurer
from autoprec.envs.units import Discovery, discover
from autoprec.errors import WorkloadError
from autoprec.finding import load_workload
from autoprec.fingerprint import architecture_fingerprint, measured_fingerprint, weights_fingerprint
from autoprec.kernels.device import capability, device_name
from autoprec.plan import COMPILE, Device
from autoprec.runtimes.available import GraphRuntimes
from autoprec.runtimes.eager import EagerRuntime
from autoprec.store.records import Context
from autoprec.workload import LoadedWorkload, describe_inputs

if TYPE_CHECKING:
    from autoprec.runtimes.graph_runtime import GraphRuntime


@dataclass(frozen=True)
class Prepared:
    """A workload made ready: everything that does not depend on a search.

    Attributes:
        loaded: The workload.
        measurer: Measures plans of it.
        discovery: Its units.
        context: What its figures hold for.
        weights: Fingerprint of its weights.
        calibration: Its calibration batches, or an empty list.
        graphs: Makes the runtimes that work on an exported graph.
    """

    loaded: LoadedWorkload
    measurer: Measurer
    discovery: Discovery
    context: Context
    weights: str
    calibration: list[Any]
    graphs: GraphRuntimes

    @property
    def least_quality(self) -> float:
        """Least magnitude of the baseline's quality on any part of the data: a share of it holds on all."""
        measurer = self.measurer
        return min(abs(measurer.baseline_quality(split)) for split in measurer.splits)

    @cached_property
    def seen(self) -> BaselineFigures:
        """What watching the model as it came tells; seconds of work, done once."""
        batches = [*(example.inputs for example in self.measurer.examples), *self.calibration]
        return observe_baseline(self.measurer, self.discovery.modules, batches)

    def use_runtime(self, name: str) -> None:
        """Let the measurer execute plans of a runtime.

        Raises:
            RuntimeRefusedError: It is not installed, or lacks what it needs.
        """
        if name in self.measurer.runtimes:
            return
        if name == COMPILE:
            from autoprec.runtimes.compiled import CompileRuntime  # importing dynamo takes a second

            self.measurer.runtimes[name] = CompileRuntime(self.measurer.run_examples)
        else:
            self.measurer.runtimes[name] = self.graphs.get(name)

    def context_for(self, runtime: str) -> Context:
        """Return what figures of a runtime in use hold for."""
        device = self.context.device
        versions = device.versions | self.measurer.runtimes[runtime].versions
        changed = device.model_copy(update={"runtime": runtime, "versions": versions})
        return self.context.model_copy(update={"device": changed})

    def graph_runtime(self, name: str) -> GraphRuntime:
        """Return a graph runtime in use."""
        found = self.measurer.runtimes[name]
        return cast("GraphRuntime", found)


def prepare(
    workload: Any,
    purpose: Literal["latency", "throughput"],
    groups: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Prepared:
    """Load a workload, run the model as it came, judge its quality, and find its units.

    Args:
        workload: What `load_workload` takes.
        purpose: Which example inputs are timed.
        groups: See `discover`.
        exclude: See `discover`.

    Raises:
        WorkloadError: The workload cannot be loaded or breaks its contract.
        SettingError: A regular expression is broken or matches nothing.
    """
    loaded = load_workload(workload)
    model = loaded.build_model()
    elsewhere = sorted({parameter.device.type for parameter in model.parameters()} - {"cpu"})
    if elsewhere:
        raise WorkloadError(
            f"{loaded.reference}: build_model() returned a model on {elsewhere[0]!r}; "
            "this version measures on the CPU only: build it there"
        )
    examples = loaded.examples(purpose)
    calibration = loaded.calibration() or []
    weights = weights_fingerprint(model)
    fingerprint = measured_fingerprint(loaded, model, examples, calibration, weights=weights)
    measurer = Measurer(loaded, model, examples, EagerRuntime(), calibration)
    measurer.check_baseline()
    measurer.baseline_reported(measurer.splits[-1])  # a mistake in it must not come out after the search
    # A metric whose data lies in another file can change without its code: then these change.
    qualities = [f"{measurer.baseline_quality(split):.6g}" for split in measurer.splits]
    context = Context(
        workload=loaded.reference,
        fingerprint=hashlib.sha256("|".join([fingerprint, *qualities]).encode()).hexdigest()[:32],
        architecture=architecture_fingerprint(model),
        purpose=purpose,
        shapes=tuple(describe_inputs(example.inputs) for example in examples),
        device=measured_device(),
    )
    discovery = discover(loaded, model, examples, groups=groups, exclude=exclude)
    modules = [(module.path, module.operation) for module in discovery.modules]
    graphs = GraphRuntimes(model, modules, measurer.run_as_it_came, measurer.judge)
    return Prepared(loaded, measurer, discovery, context, weights, calibration, graphs)


def measured_device() -> Device:
    """Return what figures that are measured now, here, hold for."""
    return Device(
        name=device_name(),
        capability=capability(),
        runtime=EagerRuntime.name,
        threads=torch.get_num_threads(),
        versions={"torch": str(torch.__version__), "autoprec": version("autoprec")},
    )
