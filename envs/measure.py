"""The measured run: execute the workload under one plan, for real, and judge speed, memory and quality."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import nn

from autoprec.comparing import Outline, misfit, outline
from autoprec.envs.accelerator import check_answers, clock_of, free_cache
from autoprec.envs.fidelity import Fidelity
from autoprec.envs.process_state import process_state_kept
from autoprec.envs.slicing import Judged
from autoprec.envs.timing import PairedTiming, TimingSettings, time_pairs
from autoprec.errors import CandidateError, RuntimeRefusedError, WorkloadError, one_line
from autoprec.kernels.device import devices_of
from autoprec.kernels.registry import held_bytes
from autoprec.plan import Plan
from autoprec.runtimes.runtime import Executable, Runtime
from autoprec.workload import Example, LoadedWorkload, Split, iter_tensors, seeded

SEARCH_TIMING = TimingSettings(target=0.015, max_seconds=1.0)
# From fewer than 6 pairs no interval covers 95%, and this one goes on the plan.
FRESH_TIMING = TimingSettings(target=0.005, max_seconds=8.0, fewest_pairs=6, min_pairs=30)


@dataclass(frozen=True)
class Measurement:
    """The figures of one measured run that succeeded.

    Attributes:
        timing: Baseline against plan; `None` where a unit is emulated, whose speed says nothing.
        over_reference: The reference plan against this one, where one was given.
        held_bytes: Bytes held by weights under the plan.
        quality: Quality under the plan.
        quality_drop: Baseline quality minus `quality`.
        reported: Further metrics under the plan.
        quality_share: Share of the data that quality and drop are on.
        slice_drop: The drop on a slice, where the plan was judged on that before all of the data.
    """

    timing: PairedTiming | None
    over_reference: PairedTiming | None
    held_bytes: int
    quality: float
    quality_drop: float
    reported: dict[str, float]
    quality_share: float = 1.0
    slice_drop: float | None = None


class Measurer:
    """Measures plans of one workload against the model as it came.

    One candidate is alive at a time, beside the baseline, and is freed when its run ends.

    Attributes:
        loaded: The workload.
        model: The pristine model; never changed.
        device: Where it is.
        runtimes: What executes plans, by name; the one given, and those added later.
        examples: The inputs that are timed.
    """

    def __init__(
        self,
        loaded: LoadedWorkload,
        model: nn.Module,
        examples: Sequence[Example],
        runtime: Runtime,
        calibration: Sequence[Any] | None = None,
    ) -> None:
        self.loaded = loaded
        self.model = model
        self.device = devices_of(model)[0]
        self.examples = tuple(examples)
        self.runtimes: dict[str, Runtime] = {runtime.name: runtime}
        self.baseline_bytes = held_bytes(model)
        self._repeats = _whole_ratios([example.weight for example in examples])
        self._calibration = tuple(calibration or ())
        batches = [*(example.inputs for example in examples), *self._calibration]
        self._fidelity = Fidelity(loaded, model, batches)
        self._as_it_came = _parameter_state(model)
        self._outlines: list[Outline] | None = None
        self._baseline_quality: dict[tuple[Split, float], float] = {}
        self._baseline_seconds: dict[tuple[Split, float], float] = {}
        self._baseline_reported: dict[Split, dict[str, float]] = {}

    @property
    def splits(self) -> tuple[Split, ...]:
        """The parts of the data that quality can be judged on."""
        return ("search", "final") if self.loaded.has_final_split else ("search",)

    def baseline_quality(self, split: Split, share: float = 1.0) -> float:
        """Return the quality of the model as it came on a share of a split; judged once.

        Raises:
            WorkloadError: Quality raises or is not a finite number: then nothing can be judged.
        """
        if (split, share) not in self._baseline_quality:
            started = perf_counter()
            with self._mistakes("quality(model)"):
                self._baseline_quality[split, share] = self._quality(self.model, split, share)
            self._baseline_seconds[split, share] = perf_counter() - started
        return self._baseline_quality[split, share]

    def baseline_seconds(self, split: Split, share: float = 1.0) -> float:
        """Return the wall seconds that `baseline_quality` took when it judged.

        Raises:
            WorkloadError: As `baseline_quality`.
        """
        self.baseline_quality(split, share)
        return self._baseline_seconds[split, share]

    def baseline_reported(self, split: Split) -> dict[str, float]:
        """Return the workload's further metrics for the model as it came; judged once a split.

        Raises:
            WorkloadError: A metric raises or is not a finite number.
        """
        if split not in self._baseline_reported:
            with self._mistakes("metrics(model)"):
                self._baseline_reported[split] = self._metrics(self.model, split)
        return self._baseline_reported[split]

    def judge(self) -> None:
        """Do once, with the model as it came, what a candidate goes through beside being timed.

        Raises:
            WorkloadError: It raises: that it did not before is no reason for it not to now.
        """
        with self._mistakes("running the calibration batches"), torch.inference_mode():
            for inputs in self._calibration:
                self.loaded.run(self.model, inputs)
        if self.loaded.has_quality:
            with self._mistakes("quality(model)"):
                self._quality(self.model, "search")

    def run_as_it_came(self) -> list[Any]:
        """Run the model as it came once over each example; return its outputs.

        Raises:
            WorkloadError: It raises.
        """
        with self._mistakes("running the example inputs"):
            return self.run_examples(self.model)

    def run_examples(self, model: nn.Module) -> list[Any]:
        """Run a model once over each example, as timed runs do; return its outputs."""
        with torch.inference_mode():
            return [self.loaded.run(model, example.inputs) for example in self.examples]

    def check_baseline(self) -> float:
        """Run the model as it came once and return the seconds it took.

        Raises:
            WorkloadError: It raises, or an output is NaN or infinite.
        """
        started = perf_counter()
        with self._mistakes("running the example inputs"):
            self._outlines = self._run_finite(self.model)
        return perf_counter() - started

    def measure(
        self,
        plan: Plan,
        split: Split,
        timing: TimingSettings,
        *,
        timed: bool = True,
        reported: bool = False,
        reference: Plan | None = None,
        judge: Callable[[Callable[[float], float]], Judged] | None = None,
    ) -> Measurement:
        """Execute one plan.

        Args:
            plan: What to run.
            split: Part of the data that quality is judged on.
            timing: How long to time.
            timed: False where a unit is emulated: its speed is not measured.
            reported: Also compute the workload's further metrics.
            reference: Time against this plan too; both are alive while that lasts.
            judge: Judges the candidate, given its quality on a share of the data; all of the data by default.

        Raises:
            CandidateError: The plan failed: an exception, out of memory, NaN, or not applied as asked.
        """
        baseline_quality = self.baseline_quality(split)
        with self.executable(plan) as candidate:
            quality = partial(self._quality, candidate.model, split)
            judged = judge(quality) if judge else Judged(value := quality(), baseline_quality - value)
            extra = self._metrics(candidate.model, split) if reported else {}
            timed_pairs = self.time(None, candidate, timing) if timed else None
            over = None
            if reference is not None:
                with self.executable(reference) as other:
                    over = self.time(other, candidate, timing)
            return Measurement(
                timed_pairs,
                over,
                candidate.held_bytes(),
                judged.quality,
                judged.drop,
                extra,
                judged.share,
                judged.slice_drop,
            )

    @contextmanager
    def executable(self, plan: Plan) -> Iterator[Executable]:
        """Build a candidate, check that it runs what was asked for with finite outputs, and free it after.

        Raises:
            CandidateError: Building or the checks failed, or the body raised: every exception of the
                candidate comes out as this, with the reason.
            WorkloadError: The workload changed the parameters of the model as it came, or the GPU does not
                answer any more.
        """
        check_answers(self.device)
        executable: Executable | None = None
        try:
            with process_state_kept(), _failures():
                try:
                    executable = self._runtime(plan).build(self.model, plan)
                    self._check_applied(executable, plan)
                    yield executable
                finally:
                    if executable is not None:
                        executable.close()
                        del executable
                    gc.collect()
                    free_cache(self.device)
        finally:
            self._check_pristine()

    def time(self, a: Executable | None, b: Executable, settings: TimingSettings) -> PairedTiming:
        """Time two executables interleaved over the weighted examples; `None` is the model as it came.

        Seconds are those of one run, the weighted mean over the examples.
        """
        found = time_pairs(
            self._timed_call(self.model if a is None else a.model),
            self._timed_call(b.model),
            settings,
            clock_of(self.device),
        )
        runs = sum(self._repeats)
        return replace(found, a_seconds=found.a_seconds / runs, b_seconds=found.b_seconds / runs)

    def _runtime(self, plan: Plan) -> Runtime:
        if plan.runtime not in self.runtimes:
            raise RuntimeRefusedError(f"the plan is for {plan.runtime}, which is not in use here")
        return self.runtimes[plan.runtime]

    def _timed_call(self, model: nn.Module) -> Callable[[], object]:
        # Weighted shapes: each pass runs every example in proportion to its share of the traffic.
        inputs_and_times = [
            (example.inputs, times) for example, times in zip(self.examples, self._repeats, strict=True)
        ]

        def call() -> None:
            with torch.inference_mode():
                for inputs, times in inputs_and_times:
                    for _ in range(times):
                        self.loaded.run(model, inputs)

        return call

    def _check_applied(self, executable: Executable, plan: Plan) -> None:
        applied = executable.applied()
        for unit in plan.units:
            for entry in unit.modules:
                asked, found = (unit.format, entry.implementation), applied.get(entry.path)
                if found != asked:
                    raise CandidateError(
                        f"not applied as asked: {entry.path} should run {asked[0]}/{asked[1]}, found {found}"
                    )
        self._check_outputs(self._run_finite(executable.model))
        if idle := executable.idle():
            raise CandidateError(
                f"not applied as asked: {', '.join(sorted(idle)[:3])} did not run after being replaced; "
                "the model reaches it by another way than its module tree"
            )

    def _run_finite(self, model: nn.Module) -> list[Outline]:
        """Run a model over the examples, check that outputs are finite, and return what they are made of."""
        outlines = []
        for example, output in zip(self.examples, self.run_examples(model), strict=True):
            for tensor in iter_tensors(output):
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise CandidateError(f"NaN or infinity in the output for {example.name}")
            outlines.append(outline(output))
        return outlines

    def _check_outputs(self, found: list[Outline]) -> None:
        """Check that outputs for the examples are made as those of the model as it came.

        Whoever takes the plan's outputs takes them to be, and what is of another size is more or less work,
        whose time says nothing.
        """
        if self._outlines is None:
            self.check_baseline()
            assert self._outlines is not None
        for example, mine, theirs in zip(self.examples, found, self._outlines, strict=True):
            if wrong := misfit(mine, theirs):
                raise CandidateError(f"the output for {example.name} is not made as the model's own: {wrong}")

    @contextmanager
    def _mistakes(self, what: str) -> Iterator[None]:
        """Turn whatever the model as it came raises into a `WorkloadError`: then nothing can be judged."""
        try:
            yield
        except (WorkloadError, RuntimeRefusedError):
            raise
        except CandidateError as error:
            raise WorkloadError(f"{self.loaded.reference}: {what}, model as it came: {error}") from error
        except Exception as error:
            raise WorkloadError(
                f"{self.loaded.reference}: {what} raised on the model as it came: {one_line(error)}"
            ) from error
        self._check_pristine()

    def _check_pristine(self) -> None:
        now = _parameter_state(self.model)
        changed = [name for name, state in self._as_it_came.items() if now.get(name) != state]
        if changed:
            raise WorkloadError(
                f"{self.loaded.reference}: run() or quality() changed parameter {changed[0]!r} of the model "
                "in place, so candidates could no longer be compared with it; work on a copy"
            )

    def _quality(self, model: nn.Module, split: Split, share: float = 1.0) -> float:
        with _judging(model):
            if self.loaded.has_quality:
                return self.loaded.quality(model, split, share)
            return self._fidelity.of(model)

    def _metrics(self, model: nn.Module, split: Split) -> dict[str, float]:
        with _judging(model):
            return self.loaded.metrics(model, split)


def _whole_ratios(weights: Sequence[float]) -> list[int]:
    """Return the smallest whole numbers in the ratios of the weights, each within 5%."""
    for scale in itertools.count(1):
        exact = [scale * weight / min(weights) for weight in weights]
        if all(abs(round(value) - value) <= 0.05 * value for value in exact):
            break
    return [round(value) for value in exact]


def _parameter_state(model: nn.Module) -> dict[str, tuple[object, ...]]:
    """Return for each parameter what changes when it is written to (but through `.data`) or converted."""
    return {
        f"{path}.{name}".removeprefix("."): (
            id(parameter),
            parameter.dtype,
            parameter.data_ptr(),
            None if parameter.is_inference() else parameter._version,
        )
        for path, module in model.named_modules()
        # An embedding with `max_norm` writes to its weight in every forward pass.
        if getattr(module, "max_norm", None) is None
        for name, parameter in module.named_parameters(recurse=False)
    }


@contextmanager
def _judging(model: nn.Module) -> Iterator[None]:
    """Judge a model: random numbers are the same for every candidate, and it is in eval mode after."""
    with process_state_kept(), seeded(), torch.no_grad():
        try:
            yield
        finally:
            model.eval()


@contextmanager
def _failures() -> Iterator[None]:
    """Turn every failure of a candidate into a `CandidateError` with a one-line reason."""
    try:
        yield
    except CandidateError:
        raise
    except MemoryError as error:
        raise CandidateError("out of memory") from error
    except Exception as error:
        reason = one_line(error)
        if any(words in reason for words in _OUT_OF_MEMORY):
            raise CandidateError(f"out of memory: {reason}") from error
        raise CandidateError(reason) from error


_OUT_OF_MEMORY = ("not enough memory", "out of memory", "can't allocate memory")
"""What torch's allocators say, on CPUs and accelerators."""
