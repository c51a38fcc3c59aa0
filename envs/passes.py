"""The instrumented passes behind the profile: input statistics, and one pass for each kernel.

Modules are timed inside the running model, so that caches hold what they hold in real use: a kernel timed
alone, with its weights in the cache, looks up to several times faster than it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from autoprec.apply import swap_modules
from autoprec.comparing import relative_error
from autoprec.envs.accelerator import Clock, check_answers, clock_of
from autoprec.envs.process_state import process_state_kept
from autoprec.envs.stopwatch import Run, Stopwatch, weighted_run
from autoprec.envs.units import Discovery, TunableModule
from autoprec.errors import AutoPrecError, WorkloadError, one_line
from autoprec.kernels.calibration import Calibrations, needed_by
from autoprec.kernels.device import devices_of
from autoprec.kernels.modules import without_fused_paths
from autoprec.kernels.registry import (
    Implementation,
    Memo,
    held_bytes,
)
from autoprec.runtimes.eager import clone_sharing_parameters
from autoprec.workload import describe_inputs

PASS_SECONDS = 0.6
"""Time to spend on the rounds of one kernel's timing pass."""
MIN_ROUNDS, MAX_ROUNDS = 4, 100


@dataclass(frozen=True)
class InputStatistics:
    """What a module's inputs looked like over the calibration batches.

    Attributes:
        low: Smallest element.
        high: Largest.
        std: Standard deviation, the mean over the batches.
        channels: Of a linear layer's input: smallest and largest element of each channel, [inputs] each.
    """

    low: float
    high: float
    std: float
    channels: tuple[torch.Tensor, torch.Tensor] | None = None


@dataclass
class KernelFigures:
    """What one implementation of one format does in one module.

    Attributes:
        seconds: Time in one run of the examples, relative to the whole baseline run measured beside it.
            NaN where the format is emulated.
        bytes: Bytes the converted module holds.
        error: Relative L2 error of its output on the baseline's inputs, root mean square over batches.
        refused: Why it does not run here; empty where it does.
    """

    seconds: float = float("nan")
    bytes: int = 0
    error: float = float("nan")
    refused: str = ""


def observe_inputs(
    run: Run, model: nn.Module, modules: Sequence[TunableModule], batches: Sequence[Any]
) -> dict[str, InputStatistics]:
    """Run the batches through the model as it came and return the statistics of each module's input.

    Raises:
        WorkloadError: The model rejects a batch.
    """
    found: dict[str, list[tuple[float, float, float]]] = {}
    channels: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def record(path: str, module: nn.Module, value: torch.Tensor, output: torch.Tensor) -> None:
        if value.is_floating_point() and value.numel():
            low, high = torch.aminmax(value.float())
            found.setdefault(path, []).append(
                (float(low), float(high), float(value.float().std(correction=0)))
            )
            if isinstance(module, nn.Linear):
                least, most = torch.aminmax(value.float().reshape(-1, value.shape[-1]), dim=0)
                if path in channels:
                    least = torch.minimum(least, channels[path][0])
                    most = torch.maximum(most, channels[path][1])
                channels[path] = least, most

    with _watched(model, modules, record), torch.no_grad(), process_state_kept():
        for batch in batches:
            try:
                run(model, batch)
            except Exception as error:
                shapes = describe_inputs(batch)
                raise WorkloadError(
                    f"the model rejects a batch of calibration() ({shapes}): {one_line(error)}"
                ) from error
    return {
        path: InputStatistics(
            min(low for low, _, _ in rows),
            max(high for _, high, _ in rows),
            float(np.mean([r[2] for r in rows])),
            channels.get(path),
        )
        for path, rows in found.items()
    }


def kernel_pass(
    run: Run,
    model: nn.Module,
    discovery: Discovery,
    kernels: Mapping[str, Implementation],
    calibrations: Mapping[str, Calibrations],
    timed_inputs: Sequence[tuple[Any, float]],
    judged_inputs: Sequence[Any],
    *,
    timed: bool,
) -> dict[str, KernelFigures]:
    """Convert modules each with its kernel, and return what that does in each of them.

    Args:
        run: The workload's run.
        model: The model as it came; never changed.
        discovery: The units.
        kernels: Module path to the implementation to try there.
        calibrations: What calibration told of the inputs of modules.
        timed_inputs: (inputs, weight) of the examples, weights summing to 1.
        judged_inputs: Inputs on which local errors are judged; the examples come first, so that a kernel
            that fails at a shape really seen is refused here.
        timed: False for emulated kernels.
    """
    figures = {path: KernelFigures() for path in kernels}
    modules = {m.path: m for unit in discovery.units for m in unit.modules if m.path in kernels}
    converted: dict[str, nn.Module] = {}
    memo: Memo = {}
    for path, kernel in kernels.items():
        source = model.get_submodule(path)
        try:
            needed = needed_by(kernel.format, path, calibrations)
            converted[path] = kernel.convert(source, needed, memo).train(source.training)
        except Exception as error:
            figures[path].refused = _reason(error)
            continue
        figures[path].bytes = held_bytes(converted[path])
    try:
        _judge(run, model, list(modules.values()), converted, judged_inputs, figures)
        working = {path: module for path, module in converted.items() if not figures[path].refused}
        if timed and working:
            watched = [module.path for module in discovery.modules]
            _time_in_place(run, model, watched, working, timed_inputs, figures)
    except (torch.OutOfMemoryError, WorkloadError) as error:
        reason = error.__cause__ or error
        if not isinstance(reason, torch.OutOfMemoryError):
            raise
        # The model as it came ran before: what has no room is what was converted, beside it.
        for path in converted:
            figures[path].refused = figures[path].refused or _reason(reason)
    return figures


def _judge(
    run: Run,
    model: nn.Module,
    modules: Sequence[TunableModule],
    converted: Mapping[str, nn.Module],
    batches: Sequence[Any],
    figures: Mapping[str, KernelFigures],
) -> None:
    """Compare each converted module with its original on the original's inputs, in the baseline's run."""
    errors: dict[str, list[float]] = {}

    def compare(path: str, module: nn.Module, value: torch.Tensor, output: torch.Tensor) -> None:
        if path not in converted or figures[path].refused:
            return
        try:
            found = converted[path](value)
        except Exception as error:
            figures[path].refused = f"{_reason(error)} (at input {list(value.shape)})"
            return
        if found.shape != output.shape or found.dtype != output.dtype:
            figures[
                path
            ].refused = (
                f"returns {found.dtype}{list(found.shape)} instead of {output.dtype}{list(output.shape)}"
            )
            return
        errors.setdefault(path, []).append(relative_error(found, output))

    with _watched(model, modules, compare), torch.no_grad(), process_state_kept(), _as_it_came():
        for batch in batches:
            run(model, batch)
    for path, values in errors.items():
        error = float(np.sqrt(np.mean(np.square(values))))
        if np.isfinite(error):
            figures[path].error = error
        elif not figures[path].refused:
            figures[path].refused = "gives NaN or infinity on the workload's own inputs"


def _time_in_place(
    run: Run,
    model: nn.Module,
    watched: Sequence[str],
    working: Mapping[str, nn.Module],
    timed_inputs: Sequence[tuple[Any, float]],
    figures: Mapping[str, KernelFigures],
) -> None:
    with process_state_kept(), torch.inference_mode():
        device = devices_of(model)[0]
        now = clock_of(device)
        candidate = _assemble(model, working)
        try:
            weighted_run(run, candidate, timed_inputs, now)
        except Exception:
            # Something reads a module in a way its replacement does not offer: find out where, one by one.
            working = _alone(run, model, working, timed_inputs, figures, now)
            check_answers(device)
            candidate = _assemble(model, working)
        started = now()
        weighted_run(run, candidate, timed_inputs, now)
        weighted_run(run, model, timed_inputs, now)
        rounds = int(np.clip(PASS_SECONDS / max(now() - started, 1e-6), MIN_ROUNDS, MAX_ROUNDS))
        stopwatch = Stopwatch(now)
        handles = stopwatch.attach(candidate, list(working))
        # Waiting at each module makes a run on a GPU longer: there, shares are of a run that waits too.
        beside = Stopwatch(now) if device.type == "cuda" else None
        if beside:
            handles += beside.attach(model, watched)
        try:
            totals = []
            for _ in range(rounds):
                totals.append(weighted_run(run, model, timed_inputs, now, beside))
                weighted_run(run, candidate, timed_inputs, now, stopwatch)
        finally:
            for handle in handles:
                handle.remove()
    baseline = float(np.median(totals))
    for path in working:
        figures[path].seconds = float(np.median(stopwatch.rounds[path])) / baseline


def baseline_shares(
    run: Run, model: nn.Module, paths: Sequence[str], timed_inputs: Sequence[tuple[Any, float]]
) -> tuple[dict[str, float], float]:
    """Return each module's share of one baseline run, and the seconds of one run."""
    with process_state_kept(), torch.inference_mode(), _as_it_came():
        device = devices_of(model)[0]
        now = clock_of(device)
        started = now()
        for _ in range(2):
            weighted_run(run, model, timed_inputs, now)
        spent = (now() - started) / 2
        rounds = int(np.clip(2 * PASS_SECONDS / max(spent, 1e-6), MIN_ROUNDS, 2 * MAX_ROUNDS))
        plain = [weighted_run(run, model, timed_inputs, now) for _ in range(rounds)]
        stopwatch = Stopwatch(now)
        handles = stopwatch.attach(model, paths)
        try:
            waiting = [weighted_run(run, model, timed_inputs, now, stopwatch) for _ in range(rounds)]
        finally:
            for handle in handles:
                handle.remove()
    seconds = float(np.median(plain))
    whole = float(np.median(waiting)) if device.type == "cuda" else seconds  # as in `_time_in_place`
    return {path: float(np.median(stopwatch.rounds[path])) / whole for path in paths}, seconds


def _assemble(model: nn.Module, working: Mapping[str, nn.Module]) -> nn.Module:
    candidate = clone_sharing_parameters(model)
    swap_modules(candidate, {candidate.get_submodule(path): module for path, module in working.items()})
    return candidate


def _alone(
    run: Run,
    model: nn.Module,
    working: Mapping[str, nn.Module],
    timed_inputs: Sequence[tuple[Any, float]],
    figures: Mapping[str, KernelFigures],
    now: Clock,
) -> dict[str, nn.Module]:
    """Return the replacements that run when each is the only one; the others are refused with the reason."""
    fine: dict[str, nn.Module] = {}
    for path, module in working.items():
        try:
            weighted_run(run, _assemble(model, {path: module}), timed_inputs, now)
            fine[path] = module
        except Exception as error:
            figures[path].refused = f"the model does not run with it: {_reason(error)}"
    return fine


def judge_modules(
    run: Run,
    model: nn.Module,
    modules: Sequence[TunableModule],
    batches: Sequence[Any],
    see: Callable[[str, nn.Module, torch.Tensor, torch.Tensor], None],
) -> None:
    """Run batches through the model as it came; `see(path, module, input, output)` hears of each call."""
    with _watched(model, modules, see), torch.no_grad(), process_state_kept(), _as_it_came():
        for batch in batches:
            run(model, batch)


@contextmanager
def _watched(
    model: nn.Module,
    modules: Sequence[TunableModule],
    see: Callable[[str, nn.Module, torch.Tensor, torch.Tensor], None],
) -> Iterator[None]:
    """Call `see(path, module, input, output)` after each call of the modules."""

    def watch(path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            see(path, module, args[0] if args else next(iter(kwargs.values())), output)

        return hook

    handles = [
        model.get_submodule(m.path).register_forward_hook(watch(m.path), with_kwargs=True) for m in modules
    ]
    try:
        with without_fused_paths():
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _as_it_came() -> Iterator[None]:
    """Blame the workload for what its model raises as it came, though it ran before."""
    try:
        yield
    except AutoPrecError:
        raise
    except Exception as error:
        raise WorkloadError(
            f"running the model as it came raised, where it had not before: {one_line(error)}"
        ) from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
