"""Make a workload ready to be measured: load it, check that it works as it came, find its units."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn

from autoprec.envs.baseline import BaselineFigures, observe_baseline
from autoprec.envs.measure import Measurer
from autoprec.envs.units import Discovery, discover
from autoprec.errors import RuntimeRefusedError, WorkloadError
from autoprec.finding import load_workload
from autoprec.fingerprint import architecture_fingerprint, measured_fingerprint, weights_fingerprint
from autoprec.kernels.device import CPU, capability, device_name, devices_of
from autoprec.plan import COMPILE, EAGER, Device
from autoprec.runtimes.available import GraphRuntimes
from autoprec.runtimes.eager import EagerRuntime
from autoprec.store.records import Context
from autoprec.workload import Example, LoadedWorkload, describe_inputs, named_tensors

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

    @cached_property
    def seen(self) -> BaselineFigures:
        """What watching the model as it came tells; seconds of work, done once."""
        batches = [*(example.inputs for example in self.measurer.examples), *self.calibration]
        return observe_baseline(self.measurer, self.discovery.modules, batches)

    def use_runtime(self, name: str) -> None:
        """Let the measurer execute plans of a runtime.

        Raises:
            RuntimeRefusedError: It is not installed, lacks what it needs, or is not for the model's device.
        """
        if name in self.measurer.runtimes:
            return
        if self.measurer.device.type != "cpu":
            raise RuntimeRefusedError(
                f"{name} is measured on the CPU only, and the model is on {self.measurer.device}: use "
                f"--runtime {EAGER}, or build the model on the CPU"
            )
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
    device = _one_device(loaded, model)
    examples = loaded.examples(purpose)
    calibration = loaded.calibration() or []
    _check_inputs_are_there(loaded, device, examples, calibration)
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
        device=measured_device(device),
    )
    discovery = discover(loaded, model, examples, groups=groups, exclude=exclude)
    modules = [(module.path, module.operation) for module in discovery.modules]
    graphs = GraphRuntimes(model, modules, measurer.run_as_it_came, measurer.judge)
    return Prepared(loaded, measurer, discovery, context, weights, calibration, graphs)


def measured_device(device: torch.device = CPU) -> Device:
    """Return what figures that are measured now, here, on a device hold for."""
    versions = {"torch": str(torch.__version__), "autoprec": version("autoprec")}
    if device.type == "cuda":
        versions |= _gpu_versions()
    return Device(
        name=device_name(device),
        capability=capability(device),
        runtime=EagerRuntime.name,
        threads=torch.get_num_threads(),
        versions=versions,
    )


def _gpu_versions() -> dict[str, str]:
    """Return the versions that change the speed of kernels on a GPU."""
    found = {"cuda": str(torch.version.cuda or torch.version.hip)}
    if importlib.util.find_spec("triton") is not None:
        import triton  # its distribution has another name in builds of torch for ROCm

        found["triton"] = str(triton.__version__)
    return found


def _one_device(loaded: LoadedWorkload, model: nn.Module) -> torch.device:
    """Return where all of a model is.

    Raises:
        WorkloadError: It is in several places, or in one that is not measured: names them.
    """
    places = devices_of(model)
    where = " and ".join(repr(str(place)) for place in places)
    returned = f"{loaded.reference}: build_model() returned a model on {where}"
    if len(places) > 1:
        raise WorkloadError(f"{returned}; a model is measured on one device: build all of it there")
    (device,) = places
    if device.type not in ("cpu", "cuda"):
        raise WorkloadError(f"{returned}; this version measures on a CPU or one CUDA device: build it there")
    # Triton runs its kernels on the current device, wherever their tensors are.
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        raise WorkloadError(
            f"{returned}, which is not the current device: build it on 'cuda', and set "
            f"CUDA_VISIBLE_DEVICES={device.index} to measure on that one"
        )
    return device


def _check_inputs_are_there(
    loaded: LoadedWorkload, device: torch.device, examples: Sequence[Example], calibration: Sequence[Any]
) -> None:
    """Check that inputs are where the model is, unless a `run` of the workload's own may move them.

    Raises:
        WorkloadError: One is elsewhere: moving it here would time what the workload does not say.
    """
    if loaded.runs_itself:
        return
    batches = [("the example inputs", example.inputs) for example in examples]
    batches += [("a batch of calibration()", batch) for batch in calibration]
    for what, batch in batches:
        for place, tensor in named_tensors(batch):
            if tensor.dim() and tensor.device != device:
                named = f" ({place})" if place else ""
                raise WorkloadError(
                    f"{loaded.reference}: a tensor of {what}{named} is on '{tensor.device}' and the model on "
                    f"'{device}': make it there, or move it in run(model, inputs)"
                )
