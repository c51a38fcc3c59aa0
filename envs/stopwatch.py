"""Times of whole runs over the examples, and of modules inside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from torch import nn

from autoprec.envs.accelerator import Clock
from autoprec.kernels.modules import without_fused_paths

Run = Callable[[nn.Module, Any], Any]
"""Runs a model once over inputs, as the workload does."""


def weighted_run(
    run: Run,
    model: nn.Module,
    timed_inputs: Sequence[tuple[Any, float]],
    now: Clock,
    stopwatch: Stopwatch | None = None,
) -> float:
    """Run every example once and return the weighted seconds; the stopwatch sums by the same weights."""
    total = 0.0
    with without_fused_paths() if stopwatch else nullcontext():  # a stopwatch is hooks
        for inputs, weight in timed_inputs:
            if stopwatch:
                stopwatch.weight = weight
            started = now()
            run(model, inputs)
            total += weight * (now() - started)
    if stopwatch:
        stopwatch.next_round()
    return total


class Stopwatch:
    """Adds up the time spent inside modules, by round.

    Args:
        now: The clock of the device. A GPU's waits before and after each module, which makes a run longer:
            otherwise one module is asked for while another computes.

    Attributes:
        weight: What the times that follow count.
        rounds: Module path to the seconds of each round.
    """

    def __init__(self, now: Clock) -> None:
        self.weight = 1.0
        self._now = now
        self.rounds: dict[str, list[float]] = {}
        self._sums: dict[str, float] = {}
        self._started: dict[str, float] = {}

    def attach(self, model: nn.Module, paths: Sequence[str]) -> list[Any]:
        """Watch modules of a model; return what to `remove()` to stop."""
        handles = []
        for path in paths:
            self.rounds[path] = []
            self._sums[path] = 0.0
            module = model.get_submodule(path)
            handles.append(module.register_forward_pre_hook(self._enter(path)))
            handles.append(module.register_forward_hook(self._leave(path)))
        return handles

    def next_round(self) -> None:
        """Keep what was added up since the last round, and begin at zero."""
        for path, seconds in self._sums.items():
            self.rounds[path].append(seconds)
            self._sums[path] = 0.0

    def _enter(self, path: str) -> Any:
        started, clock = self._started, self._now

        def hook(module: nn.Module, args: Any) -> None:
            started[path] = clock()

        return hook

    def _leave(self, path: str) -> Any:
        started, sums, clock = self._started, self._sums, self._now

        def hook(module: nn.Module, args: Any, output: Any) -> None:
            sums[path] += self.weight * (clock() - started[path])

        return hook
