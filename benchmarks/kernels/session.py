"""One run of the benchmark: checks, ceilings, then timings in order of what they tell until time is up."""

from __future__ import annotations

import dataclasses
import functools
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
import triton

from autoprec.errors import one_line
from autoprec.kernels.device import capability, device_name
from benchmarks.kernels import layers, report
from benchmarks.kernels.cases import Timing, normal
from benchmarks.kernels.ceilings import Ceiling, measure
from benchmarks.kernels.checking import (
    Verdict,
    family_of,
    lacking,
    may_be_timed,
    missing,
    red,
    run_checks,
    subject,
)
from benchmarks.kernels.shapes import Projection, products
from benchmarks.kernels.timing import Pair, Stopwatch

_WRITE_SECONDS = 10.0
"""How much of the run is lost at most where it is killed."""


def say(line: str) -> None:
    """Print a line at once: a run may be killed."""
    print(line, flush=True)


def described(device: torch.device) -> dict[str, Any]:
    """Return what figures hold for."""
    return {
        "name": device_name(device),
        "capability": capability(device),
        "driver": _driver() if device.type == "cuda" else None,
        "versions": {
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda or torch.version.hip or "none",
            "python": platform.python_version(),
        },
    }


def _driver() -> str | None:
    """Return the release of NVIDIA's driver, which torch does not tell; `None` where nothing does."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return None
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None


class Session:
    """A run, with all that it has found so far.

    Args:
        device: A GPU, or the CPU for Triton's interpreter.
        operations: Names of the operations to check and time.
        out: Directory of the files.
        minutes: When to begin no further timing.
    """

    def __init__(self, device: torch.device, operations: tuple[str, ...], out: Path, minutes: float) -> None:
        self._device = device
        self._operations = operations
        self._out = out
        self._deadline = time.monotonic() + 60 * minutes
        self._about = described(device)
        self._measured_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._family = family_of(device)
        self._verdicts: list[Verdict] = []
        self._red: set[tuple[str, str]] = set()
        self._ceilings: dict[str, Ceiling] = {}
        self._rows: list[dict[str, Any]] = []
        self._left: list[str] = []
        self._layers: list[dict[str, Any]] = []
        self._stopped: str | None = None
        self._written = 0.0

    @functools.cached_property
    def _watch(self) -> Stopwatch:
        return Stopwatch(self._device)

    def run(self, *, check_only: bool) -> int:
        """Check, time, write the files, and return the exit code: 1 where a check is wrong."""
        said = ", ".join(f"{name} {release}" for name, release in self._about["versions"].items())
        say(f"{self._about['name']} ({self._about['capability']}), {said}")
        try:
            with torch.no_grad():
                self._check()
                if not check_only:
                    self._time()
        except Exception as error:  # a kernel that reads where it may not leaves the GPU of no use
            self._stopped = one_line(error)
            say(f"stopped: {self._stopped}")
        finally:
            self._write(whole=not check_only)
        for line in report.summary(self._rows, self._left):
            say(line)
        return 1 if self._red or self._stopped else 0

    def _check(self) -> None:
        tiny = self._device.type != "cuda"
        for name in self._operations:
            found = subject(name)
            if found is None:
                self._verdicts.append(missing(name))
                say(f"WRONG  {name}: {self._verdicts[-1].reason}")
            else:
                self._verdicts += run_checks(name, found.checks(tiny), self._device, say)
        self._verdicts += run_checks(layers.OPERATION, layers.checks(tiny), self._device, say)
        self._red = red(self._verdicts)

    def _time(self) -> None:
        self._ceilings = measure(self._device, self._family, say)
        # In turns, so that whatever the time suffices for, each has its most telling shapes.
        queues = [self._timings(name) for name in self._operations]
        if layers.needed() <= set(self._operations):  # a profile of some formats would mislead
            queues.append(self._layer_turns())
        while queues:
            for queue in list(queues):
                turn = next(queue, None)
                if turn is None:
                    queues.remove(queue)
                    continue
                name, work = turn
                if time.monotonic() >= self._deadline:
                    self._left.append(name)
                    continue
                work()
                if time.monotonic() - self._written > _WRITE_SECONDS:
                    self._write(whole=True)

    def _timings(self, operation: str) -> Iterator[tuple[str, Callable[[], None]]]:
        """Return the timings of an operation, by name; what is not right or not native is left out."""
        found = subject(operation)
        for timing in found.timings() if found else ():
            if not may_be_timed(operation, timing, self._red, self._family):
                continue
            sizes = "x".join(map(str, timing.shape.values()))

            def work(timing: Timing = timing) -> None:
                self._compare(operation, timing)

            yield f"{operation} {timing.variant}: {sizes}", work

    def _compare(self, operation: str, timing: Timing) -> None:
        """Time a variant against its rivals; what cannot be timed gives a row with the reason."""
        try:
            work = timing.prepare(self._device)
        except Exception as error:
            self._add(report.head(operation, timing) | {"reason": one_line(error)})
            return
        for name, rival in work.rivals.items():
            try:
                pair = self._watch.pair(work.ours, rival)
                self._add(report.row(operation, timing, work, name, pair, self._ceilings))
            except Exception as error:
                self._add(report.head(operation, timing) | {"rival": name, "reason": one_line(error)})
        del work
        torch.cuda.empty_cache()

    def _add(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        say(report.told(row))

    def _layer_turns(self) -> Iterator[tuple[str, Callable[[], None]]]:
        for rows, projection in products():

            def work(rows: int = rows, projection: Projection = projection) -> None:
                self._profile(rows, projection)

            yield f"{layers.OPERATION}: {rows}x{projection.inputs}x{projection.outputs}", work

    def _profile(self, rows: int, projection: Projection) -> None:
        """Time a whole layer in every format against bfloat16."""
        shape = {"rows": rows, "inputs": projection.inputs, "outputs": projection.outputs}
        told, baselines = [], []
        try:
            weight = normal(self._device, projection.outputs, projection.inputs, seed=1)
            activations = normal(self._device, rows, projection.inputs)
            baseline = layers.LAYERS[0].build(weight)
        except Exception as error:
            self._fail(layers.LAYERS[0], shape, projection, error)
            return
        for layer in layers.LAYERS[1:]:
            if self._barred(layer):
                continue
            try:
                pair = self._layer_pair(layer, weight, activations, baseline)
            except Exception as error:
                self._fail(layer, shape, projection, error)
                continue
            baselines.append(pair.rival)
            told.append(self._entry(layer, shape, pair.ours, dataclasses.asdict(pair.ratio)))
        if baselines and not self._barred(layers.LAYERS[0]):
            told.insert(0, self._entry(layers.LAYERS[0], shape, median(baselines), None))
            self._layers += told
            ratios = ", ".join(f"{item['format']} {item['over_bf16']['value']:.2f}x" for item in told[1:])
            sizes = "x".join(map(str, shape.values()))
            say(f"{'layer':16} {'of bf16':14} {sizes:18} {median(baselines) * 1e6:9.1f} us; {ratios}")
        torch.cuda.empty_cache()

    def _fail(
        self, layer: layers.LayerFormat, shape: dict[str, int], projection: Projection, error: Exception
    ) -> None:
        named = {"operation": layers.OPERATION, "variant": layer.format}
        self._add(named | {"shape": shape, "where": projection.name, "reason": one_line(error)})

    def _layer_pair(
        self, layer: layers.LayerFormat, weight: torch.Tensor, rows: torch.Tensor, baseline: layers.Layer
    ) -> Pair:
        ours, given = layer.build(weight), rows.to(layer.dtype)
        return self._watch.pair(lambda: ours(given), lambda: baseline(rows), 0.06)

    def _barred(self, layer: layers.LayerFormat) -> bool:
        parts = {(layers.OPERATION, layer.format), *layer.parts}
        return bool(parts & self._red or lacking(layer.needs, self._family))

    def _entry(
        self, layer: layers.LayerFormat, shape: dict[str, int], seconds: float, ratio: dict[str, float] | None
    ) -> dict[str, Any]:
        named = {"format": layer.format, "implementation": layer.implementation}
        return named | shape | {"seconds": seconds, "over_bf16": ratio}

    def _write(self, *, whole: bool) -> None:
        found = report.benchmark(
            self._about,
            self._measured_at,
            self._verdicts,
            self._ceilings,
            self._rows,
            self._left,
            self._stopped,
        )
        report.write(self._out / report.BENCHMARK_FILE, found)
        if whole and self._layers:
            profile = report.device_profile(self._about, self._measured_at, self._ceilings, self._layers)
            report.write(self._out / report.PROFILE_FILE, profile)
        self._written = time.monotonic()
