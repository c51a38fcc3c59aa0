"""The model as it came, watched: what its layers are given, and how long each takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from autoprec.envs.measure import Measurer
from autoprec.envs.passes import InputStatistics, baseline_shares, observe_inputs
from autoprec.envs.units import TunableModule
from autoprec.kernels.calibration import Calibration, Calibrations, smoothed


@dataclass(frozen=True)
class BaselineFigures:
    """What watching the model as it came tells.

    Attributes:
        statistics: Of the input of each module path.
        calibrations: What formats need to know of it.
        shares: Share of each module path in one run over the examples.
        seconds: Of one such run.
    """

    statistics: dict[str, InputStatistics]
    calibrations: dict[str, Calibrations]
    shares: dict[str, float]
    seconds: float


def observe_baseline(
    measurer: Measurer, modules: Sequence[TunableModule], batches: Sequence[Any]
) -> BaselineFigures:
    """Watch the model as it came; see `BaselineFigures`."""
    run, model = measurer.loaded.run, measurer.model
    examples = [(example.inputs, example.weight) for example in measurer.examples]
    statistics = observe_inputs(run, model, modules, batches)
    calibrations = {path: Calibrations(Calibration(seen.low, seen.high)) for path, seen in statistics.items()}
    for siblings in _readers_of_one_input(modules, statistics):
        channels = statistics[siblings[0].path].channels
        assert channels is not None
        weights = [model.get_submodule(module.path).weight for module in siblings]
        if not all(bool(torch.isfinite(each).all()) for each in (*channels, *weights)):  # type: ignore[arg-type]
            continue  # formats that smooth are refused there
        smooth = smoothed(*channels, weights)  # type: ignore[arg-type]
        for module in siblings:
            calibrations[module.path] = replace(calibrations[module.path], smooth=smooth)
    shares, seconds = baseline_shares(run, model, [m.path for m in modules], examples)
    return BaselineFigures(statistics, calibrations, shares, seconds)


def _readers_of_one_input(
    modules: Sequence[TunableModule], statistics: dict[str, InputStatistics]
) -> list[list[TunableModule]]:
    """Return linear modules by the tensor they read: neighbours whose channels have the same extremes."""
    found: list[list[TunableModule]] = []
    for module in modules:
        seen = statistics.get(module.path)
        if seen is None or seen.channels is None:
            continue
        last = statistics[found[-1][0].path].channels if found else None
        if last and all(torch.equal(a, b) for a, b in zip(last, seen.channels, strict=True)):
            found[-1].append(module)
        else:
            found.append([module])
    return found
