"""What calibration tells about a module's input, and the smoothing of its channels.

Smoothing (SmoothQuant, Xiao et al. 2023, arXiv:2211.10438): where some input channels are much larger than
others, one 8-bit scale for all leaves the others few steps. Dividing each channel by a factor, and
multiplying the weight's column by it, changes no product and moves part of the spread into the weight, whose
rounding is finer. A factor is a whole number of quarter-octaves, so that a plan holds one byte a channel.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autoprec.errors import ConversionError
from autoprec.kernels.formats import FORMATS

STEPS = 4
"""Exponent steps in a factor of two."""
STRENGTH = 0.75
"""Share of a channel's spread that moves from the input to the weight. On MiniLM with every linear layer in
8 bits, 0.7 to 0.9 lose least (0.0021 to 0.0028 of cosine; 0.0077 without smoothing, 0.013 at 0.5)."""
_WIDEST = 1e-3
"""Smallest extreme of a channel, relative to the largest of all: one that calibration never saw must not
be divided by next to nothing."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What one format needs to know of a module's input.

    Attributes:
        low: Smallest element that enters the arithmetic.
        high: Largest.
        smoothing: For each input channel, quarter-octaves by which it is divided; empty where nothing is.
    """

    low: float
    high: float
    smoothing: tuple[int, ...] = ()

    def factors(self) -> Tensor:
        """Return the factor of each channel, float32[inputs]."""
        return torch.exp2(torch.tensor(self.smoothing, dtype=torch.float32) / STEPS)


@dataclass(frozen=True, slots=True)
class Calibrations:
    """What the formats need to know of one module's input.

    Attributes:
        plain: For formats that take the input as it comes.
        smooth: For those that smooth channels; `None` where the input has none.
    """

    plain: Calibration
    smooth: Calibration | None = None

    def of(self, format_name: str) -> Calibration | None:
        """Return what a format needs, or `None` where it needs nothing or there is nothing."""
        fmt = FORMATS[format_name]
        if not fmt.calibrated:
            return None
        return self.smooth if fmt.smooth else self.plain


def needed_by(format_name: str, path: str, calibrations: Mapping[str, Calibrations]) -> Calibration | None:
    """Return what a format needs to know of the input of a module; `None` where there is nothing."""
    known = calibrations.get(path)
    return None if known is None else known.of(format_name)


def smoothed(low: Tensor, high: Tensor, weights: Sequence[Tensor]) -> Calibration:
    """Return the calibration of modules that read one input, with its channels smoothed.

    Args:
        low: Smallest input of each channel, [inputs].
        high: Largest.
        weights: The modules' weights, [outputs, inputs] each.
    """
    activation = torch.maximum(low.abs(), high.abs()).float()
    weight = torch.stack([each.detach().float().abs().amax(0) for each in weights]).amax(0)
    factors = _bounded(activation) ** STRENGTH / _bounded(weight) ** (1 - STRENGTH)
    exponents = (STEPS * torch.log2(factors / factors.log().mean().exp())).round().clamp(-127, 127)
    smoothing = tuple(int(exponent) for exponent in exponents.tolist())
    divided = Calibration(0.0, 0.0, smoothing).factors().to(low.device)
    return Calibration(float((low / divided).min()), float((high / divided).max()), smoothing)


def encode_smoothing(smoothing: Sequence[int]) -> str | None:
    """Return exponents as a plan holds them: base64 of one signed byte each; `None` for none."""
    if not smoothing:
        return None
    return base64.b64encode(bytes(exponent & 0xFF for exponent in smoothing)).decode("ascii")


def decode_smoothing(text: str | None) -> tuple[int, ...]:
    """Undo `encode_smoothing`.

    Raises:
        ConversionError: It is no base64.
    """
    try:
        held = base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConversionError(f"smoothing is not base64: {error}") from None
    return tuple(byte - 256 if byte > 127 else byte for byte in held)


def calibrations_to_data(calibrations: Mapping[str, Calibrations]) -> dict[str, Any]:
    """Return calibrations by module path as JSON holds them."""
    return {
        path: [
            [each.low, each.high, encode_smoothing(each.smoothing)]
            for each in (known.plain, known.smooth)
            if each is not None
        ]
        for path, known in calibrations.items()
    }


def calibrations_from_data(data: Mapping[str, Any]) -> dict[str, Calibrations]:
    """Undo `calibrations_to_data`."""
    return {
        path: Calibrations(
            *(Calibration(float(low), float(high), decode_smoothing(text)) for low, high, text in rows)
        )
        for path, rows in data.items()
    }


def _bounded(extremes: Tensor) -> Tensor:
    largest = float(extremes.max())
    return extremes.clamp_min(_WIDEST * largest if largest > 0 else 1.0)
