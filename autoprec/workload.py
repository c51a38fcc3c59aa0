"""Workloads: the user's model, its inputs and how its quality is judged.

Importing this module is light; torch is imported when a workload is loaded.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from autoprec.digest import Digest, source_of, sources_of
from autoprec.errors import WorkloadError, one_line

if TYPE_CHECKING:
    import torch
    from torch import nn

Split = Literal["search", "final"]
FIDELITY = "fidelity to the fp32 outputs (1 - relative L2 error)"
"""Name of the quality used where a workload has none of its own."""
MAX_WEIGHT_RATIO = 100
"""Between the weights of two examples: a timed pass runs each in proportion."""


@dataclass(frozen=True)
class Example:
    """Inputs that are timed, and how much of the traffic looks like them.

    Attributes:
        inputs: A tensor, a tuple of positional arguments, or a dict of keyword arguments.
        weight: Share of the traffic, relative to the other examples; above 0.
        name: For people.
    """

    inputs: Any
    weight: float = 1.0
    name: str = ""


class Workload:
    """Base class for workloads. Override `build_model` and `example_inputs`; the rest is optional.

    A class with these methods works without inheriting. `quality` may take a keyword `split`
    (`"search"` or `"final"`): the search is then judged on one part of the data and its winners on the other.
    It may take a keyword `share` (above 0, at most 1, by default 1): it then judges on that share of the
    split, the same items for every model, a smaller share within a larger (`autoprec.slice_indices` chooses
    them), and plans that lose far too much on a slice are judged no further.
    """

    quality_name: str = "quality"
    """What `quality` measures, in words."""
    groups: tuple[str, ...] = ()
    """Regular expressions over module names; the modules that one matches in full are one unit."""
    exclude: tuple[str, ...] = ()
    """Regular expressions over module names; modules that one matches in full are left as they came."""

    def build_model(self) -> nn.Module:
        """Return the model, in eval mode, with its weights."""
        raise WorkloadError(f"{type(self).__name__} has no build_model(): define it to return the model")

    def example_inputs(self) -> Any:
        """Return the batch that is timed, or a list of `Example` with weights."""
        raise WorkloadError(f"{type(self).__name__} has no example_inputs(): define it to return a batch")

    def run(self, model: nn.Module, inputs: Any) -> Any:
        """Run the model once; override where a plain call is not it (a decode loop with a cache)."""
        return call_model(model, inputs)


ATTRIBUTES = ("quality_name", "groups", "exclude")
OPTIONAL_METHODS = ("quality", "calibration", "throughput_inputs", "metrics")
"""`quality(model[, split][, share]) -> float`, higher is better. `calibration() -> batches`, for static
formats. `throughput_inputs()`, like `example_inputs()`, for `--objective throughput`.
`metrics(model[, split]) -> dict[str, float]`: figures to report beside quality, for the final plans."""


def define_workload(
    *, example_inputs: Callable[[], Any] | Any, quality: Callable[..., float] | None = None, **methods: Any
) -> Callable[[Callable[[], nn.Module]], type[Workload]]:
    """Make a workload of a function that builds the model.

    Args:
        example_inputs: The batch, or a function that returns it.
        quality: `quality(model) -> float`, higher is better.
        **methods: Any other method of a workload, as a function without `self`; or an attribute.

    Raises:
        WorkloadError: A workload has no method or attribute of that name.
    """
    known = ("run", *OPTIONAL_METHODS, *ATTRIBUTES)
    for name in methods:
        if name not in known:
            raise WorkloadError(f"define_workload() got {name!r}; a workload has {', '.join(known)}")

    def decorate(build_model: Callable[[], nn.Module]) -> type[Workload]:
        functions: dict[str, Any] = {"build_model": build_model, "example_inputs": example_inputs, **methods}
        if quality is not None:
            functions["quality"] = quality
        members: dict[str, Any] = {
            name: value
            if name in ATTRIBUTES
            else staticmethod(value if callable(value) else _constant(value))
            for name, value in functions.items()
        }
        members["__module__"] = build_model.__module__
        return type(build_model.__name__, (Workload,), members)

    return decorate


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with a tensor, a tuple of arguments or a mapping of keyword arguments."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)


class LoadedWorkload:
    """A workload that was found and checked; every call into the user's code goes through here.

    Exceptions from the user's code come out as `WorkloadError` naming the method, with the original
    as the cause. What makes the model and the data runs with fixed seeds: inputs that are drawn without a
    seed are the same ones in every process, or nothing measured could be found again.

    Attributes:
        reference: What the user typed.
        has_quality: Whether the user's class judges quality itself.
        has_final_split: Whether `quality` takes `split`, so that winners are judged on held-out data.
        has_slices: Whether `quality` takes `share`, so that it can be estimated on less of the data.
        runs_itself: Whether it has a `run` of its own, which may move inputs to where the model is.
    """

    def __init__(self, target: Any, reference: str) -> None:
        self.reference = reference
        instance = target
        if inspect.isclass(target):
            instance = guarded(f"{reference}: {target.__name__}()", target)
        elif inspect.isfunction(target):
            raise WorkloadError(
                f"workload {reference!r} is a plain function; decorate it with "
                "@autoprec.define_workload(example_inputs=...) or name a class"
            )
        for method in ("build_model", "example_inputs"):
            if not callable(getattr(instance, method, None)):
                raise WorkloadError(f"workload {reference!r} has no method {method}(); define it")
        self._instance = instance
        self.has_quality = callable(getattr(instance, "quality", None))
        self.has_final_split = self.has_quality and _takes(instance.quality, "split")
        self.has_slices = self.has_quality and _takes(instance.quality, "share", by_name=True)
        own_run = getattr(type(instance), "run", None)
        self.runs_itself = callable(getattr(instance, "run", None)) and own_run is not Workload.run

    @property
    def quality_name(self) -> str:
        """What quality means, in words."""
        if not self.has_quality:
            return FIDELITY
        return " ".join(str(getattr(self._instance, "quality_name", "")).split())[:200] or "quality"

    @property
    def groups(self) -> tuple[str, ...]:
        """Regular expressions whose matches form one unit."""
        return self._patterns("groups")

    @property
    def exclude(self) -> tuple[str, ...]:
        """Regular expressions of modules to leave alone."""
        return self._patterns("exclude")

    def build_model(self) -> nn.Module:
        """Return a new model in eval mode.

        Raises:
            WorkloadError: It raises, or returns something else than a module.
        """
        from torch import nn
        from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

        model = self._call("build_model")
        if not isinstance(model, nn.Module):
            raise WorkloadError(
                f"{self.reference}: build_model() returned {_kind(model)}; it must return a torch.nn.Module"
            )
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
                raise WorkloadError(
                    f"{self.reference}: {name} of the model has no shape yet (a lazy module); run the model "
                    "once in build_model()"
                )
        return model.eval()

    def examples(self, purpose: Literal["latency", "throughput"]) -> list[Example]:
        """Return what is timed, with weights that sum to 1.

        `throughput` takes `throughput_inputs()` where there is one, else `example_inputs()`.

        Raises:
            WorkloadError: It raises, is empty, or a weight is not above 0.
        """
        method = "example_inputs"
        if purpose == "throughput" and callable(getattr(self._instance, "throughput_inputs", None)):
            method = "throughput_inputs"
        given = self._call(method)
        listed = isinstance(given, (list, tuple)) and given and all(isinstance(e, Example) for e in given)
        if isinstance(given, Example):
            given, listed = [given], True
        examples: list[Example] = list(given) if listed else [Example(given)]
        if given is None or (isinstance(given, (list, tuple)) and not given):
            raise WorkloadError(f"{self.reference}: {method}() returned {given!r}; it must return inputs")
        weights = [
            _finite_number(example.weight, f"{self.reference}: the weight of an example of {method}()")
            for example in examples
        ]
        if min(weights) <= 0 or max(weights) > MAX_WEIGHT_RATIO * min(weights):
            raise WorkloadError(
                f"{self.reference}: {method}() has weights from {min(weights)} to {max(weights)}; they must "
                f"be above 0 and at most {MAX_WEIGHT_RATIO} times apart: leave out what is too rare to count"
            )
        total = sum(example.weight for example in examples)
        return [Example(e.inputs, e.weight / total, e.name or describe_inputs(e.inputs)) for e in examples]

    def run(self, model: nn.Module, inputs: Any) -> Any:
        """Run the model once. The user's exceptions pass through: a candidate's failure is a result."""
        run = getattr(self._instance, "run", None)
        try:
            return run(model, inputs) if callable(run) else call_model(model, inputs)
        except SystemExit as error:
            raise WorkloadError(f"{self.reference}: run(model, inputs) called exit({error.code})") from error

    def quality(self, model: nn.Module, split: Split, share: float = 1.0) -> float:
        """Return the user's quality of a model; only where `has_quality`; shares only where `has_slices`.

        Raises:
            WorkloadError: The value is not a finite real number.
        """
        value = self._judge("quality", model, split, **({"share": share} if self.has_slices else {}))
        return _finite_number(value, f"{self.reference}: quality(model)")

    def metrics(self, model: nn.Module, split: Split) -> dict[str, float]:
        """Return the figures that are reported beside quality; empty where the workload gives none.

        Raises:
            WorkloadError: A value is not a finite real number.
        """
        if not callable(getattr(self._instance, "metrics", None)):
            return {}
        found = self._judge("metrics", model, split)
        if not isinstance(found, Mapping):
            raise WorkloadError(
                f"{self.reference}: metrics(model) returned {_kind(found)}; it must return a dict of floats"
            )
        return {
            str(name): _finite_number(value, f"{self.reference}: metrics(model)[{name!r}]")
            for name, value in found.items()
        }

    def calibration(self) -> list[Any] | None:
        """Return calibration batches, or `None` where the workload gives none."""
        if not callable(getattr(self._instance, "calibration", None)):
            return None
        method = self._instance.calibration

        def listed() -> Any:  # a generator runs here, with the seeds that its function has
            batches = method()
            return list(batches) if isinstance(batches, Iterable) else None

        found: list[Any] | None = guarded(f"{self.reference}: calibration()", listed)
        if not found:
            raise WorkloadError(f"{self.reference}: calibration() returned no batch")
        return found

    def digest(self) -> str:
        """Return a digest of the workload's code and of the data it holds after `build_model`.

        Covers the source file of its class (or the class as imported, where there is no file), the user's
        files that it imports from, and every attribute of the instance and its class.
        """
        classes = [
            part for part in type(self._instance).__mro__ if part.__module__ not in ("builtins", __name__)
        ]
        digest = Digest({part.__module__ for part in classes})
        for part in classes:
            members = {name: value for name, value in vars(part).items() if not name.startswith("__")}
            digest.feed(source_of(part)).feed(members)
        digest.feed(sources_of(part.__module__ for part in classes))
        return digest.feed(dict(getattr(self._instance, "__dict__", {}))).hexdigest()

    def _judge(self, name: str, model: nn.Module, split: Split, **options: Any) -> Any:
        """Call a method that judges a model, with the split where it takes one."""
        method = getattr(self._instance, name)
        try:
            return method(model, **options | ({"split": split} if _takes(method, "split") else {}))
        except SystemExit as error:
            raise WorkloadError(f"{self.reference}: {name}(model) called exit({error.code})") from error

    def _patterns(self, attribute: str) -> tuple[str, ...]:
        given = getattr(self._instance, attribute, ())
        listed = (given,) if isinstance(given, str) else given
        if not isinstance(listed, (tuple, list)) or not all(isinstance(item, str) for item in listed):
            raise WorkloadError(
                f"{self.reference}: {attribute} is {given!r}; it must be a tuple of regular expressions"
            )
        return tuple(listed)

    def _call(self, method: str) -> Any:
        return guarded(f"{self.reference}: {method}()", getattr(self._instance, method))


def describe_inputs(inputs: Any) -> str:
    """Return the shapes of inputs in words, for example `input_ids int64[1, 16]`."""
    if isinstance(inputs, Mapping):
        return ", ".join(f"{name} {describe_inputs(value)}" for name, value in inputs.items())
    if isinstance(inputs, (tuple, list)):
        return ", ".join(describe_inputs(value) for value in inputs)
    if hasattr(inputs, "shape") and hasattr(inputs, "dtype"):
        return f"{str(inputs.dtype).removeprefix('torch.')}{list(inputs.shape)}"
    return type(inputs).__name__


def iter_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors inside (nested) tuples, lists, mappings and dataclasses."""
    for _, tensor in named_tensors(value):
        yield tensor


def named_tensors(value: Any, place: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of `iter_tensors`, each with its place: `logits`, `0.hidden`; empty for the value."""
    import torch

    if isinstance(value, torch.Tensor):
        yield place, value
        return
    parts: Iterable[tuple[object, Any]] = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, (tuple, list)):
        parts = enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    for name, part in parts:
        yield from named_tensors(part, f"{place}.{name}".removeprefix("."))


def guarded(what: str, call: Callable[[], Any]) -> Any:
    """Call the user's code with fixed seeds; what it raises comes out as a `WorkloadError` naming `what`."""
    try:
        with seeded():
            return call()
    except WorkloadError:
        raise
    except Exception as error:
        raise WorkloadError(f"{what} raised {one_line(error)}") from error
    except SystemExit as error:
        raise WorkloadError(f"{what} called exit({error.code})") from error


@contextmanager
def seeded() -> Iterator[None]:
    """Seed the generators of Python, NumPy and torch, and put them back as they were."""
    import numpy as np
    import torch

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    gpus = gpu_generators()
    random.seed(0)
    np.random.seed(0)  # the user's code may use the global generator
    torch.manual_seed(0)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if gpus:
            torch.cuda.set_rng_state_all(gpus)


def gpu_generators() -> list[torch.Tensor]:
    """Return the states of the GPUs' generators; none where no GPU is in use, and none is taken into use."""
    import torch

    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_rng_state_all() if in_use else []


def _takes(method: Callable[..., Any], name: str, *, by_name: bool = False) -> bool:
    """Say whether a method takes an argument; `by_name`: names it, and does not only take any."""
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return False
    return name in parameters or (not by_name and any(p.kind is p.VAR_KEYWORD for p in parameters.values()))


def _finite_number(value: Any, what: str) -> float:
    if isinstance(value, (str, bytes, bool)) or not hasattr(value, "__float__") or hasattr(value, "grad_fn"):
        raise WorkloadError(f"{what} returned {_kind(value)}; it must return a float, higher is better")
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise WorkloadError(f"{what} returned {_kind(value)}; it must return one float") from error
    if not math.isfinite(number):
        raise WorkloadError(f"{what} returned {number}; it must return a finite float")
    return number


def _kind(value: Any) -> str:
    article = "a string" if isinstance(value, str) else f"an object of type {type(value).__name__}"
    return f"{article} ({describe_inputs(value)})" if hasattr(value, "shape") else article
