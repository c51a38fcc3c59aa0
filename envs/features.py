"""Structure features of units: what a policy may know of a model. Nothing here names a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from autoprec.envs.passes import InputStatistics
from autoprec.envs.space import FEATURES
from autoprec.envs.units import Unit
from autoprec.kernels.registry import Operation

_SAMPLE = 200_000  # weights looked at for statistics; the moments of more differ by under 1%


def unit_features(
    model: nn.Module,
    units: Sequence[Unit],
    inputs: Mapping[str, InputStatistics],
    time_share: Sequence[float],
    byte_share: Sequence[float],
) -> NDArray[np.float32]:
    """Return `[U, len(FEATURES)]`, each column scaled to about -1..1.

    Args:
        model: The model as it came.
        units: Its units.
        inputs: Input statistics of module paths; a path without floats (embeddings) is missing.
        time_share: Share of the baseline's time that each unit takes.
        byte_share: Share of the baseline's bytes that each unit holds.
    """
    rows = []
    for index, unit in enumerate(units):
        first = unit.modules[0]
        shape = first.shapes[0]
        kurtosis, peak, spread = _weight_statistics([model.get_submodule(m.path) for m in unit.modules])
        seen = [inputs[m.path] for m in unit.modules if m.path in inputs]
        outlier = max((max(-s.low, s.high) / s.std for s in seen if s.std > 0), default=1.0)
        parameters = sum(
            m.shapes[0].inputs * m.shapes[0].outputs * m.shapes[0].kernel[0] * m.shapes[0].kernel[1]
            for m in unit.modules
        )
        row = {
            "is_linear": float(first.operation is Operation.LINEAR),
            "is_conv2d": float(first.operation is Operation.CONV2D),
            "is_embedding": float(first.operation is Operation.EMBEDDING),
            "depth": index / max(1, len(units) - 1),
            "siblings": len(unit.modules) / 4,
            "log_inputs": np.log10(shape.inputs + 1) / 5,
            "log_outputs": np.log10(shape.outputs + 1) / 5,
            "log_rows": np.log10(shape.rows + 1) / 5,
            "log_parameters": np.log10(parameters + 1) / 9,
            "log_calls": np.log10(first.calls + 1),
            "weight_kurtosis": np.log10(max(kurtosis, 1.0)),
            "weight_max_over_std": np.log10(max(peak, 1.0)) / 2,
            "channel_spread": np.log10(max(spread, 1.0)) / 2,
            "input_max_over_std": np.log10(max(outlier, 1.0)) / 2,
            "time_share": time_share[index],
            "byte_share": byte_share[index],
        }
        rows.append([row[name] for name in FEATURES])
    return np.clip(np.asarray(rows, dtype=np.float32), -4.0, 4.0)


def _weight_statistics(modules: Sequence[nn.Module]) -> tuple[float, float, float]:
    """Return kurtosis, largest ÷ standard deviation, and largest ÷ median channel maximum."""
    kurtosis, peak, spread = 1.0, 1.0, 1.0
    for module in modules:
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        channels = weight.detach().flatten(1)
        channels = channels[: max(1, _SAMPLE // max(1, channels.shape[1]))].float()
        centred = channels - channels.mean()
        std = float(centred.std(correction=0))
        if std > 0:
            kurtosis = max(kurtosis, float((centred**4).mean()) / std**4)
            peak = max(peak, float(centred.abs().max()) / std)
        largest = channels.abs().amax(dim=1)
        median = float(largest.median())
        if median > 0:
            spread = max(spread, float(largest.max()) / median)
    return kurtosis, peak, spread
