"""What layers took on a device that need not be here: measured there, read and asked anywhere.

`benchmarks/kernels/run.py` writes such a file on a GPU; `autoprec profile import` puts it in the store. This
module needs pydantic only.
"""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from autoprec.errors import UserError
from autoprec.strict_json import parse

SCHEMA = "autoprec.device-profile/1"
BASELINE = "bf16"
"""The format that every other was timed against, in turns."""
MAX_BYTES = 16 * 2**20
"""Largest file that is read. A layer of it takes 250 bytes."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Size = Annotated[int, Field(gt=0, lt=2**31)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
"""Text of one line: names are printed, and a terminal obeys control characters."""


class DeviceProfileError(UserError):
    """A device profile cannot be read; the message names the file and the place."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Ratio(_Model):
    """The median ratio of bf16's time to a format's, with its 95% interval: above 1, the format is faster."""

    value: Positive
    low: Positive
    high: Positive

    @model_validator(mode="after")
    def _ordered(self) -> Ratio:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"expected low <= value <= high, got {self.low}, {self.value}, {self.high}")
        return self


class Layer(_Model):
    """A linear layer that was timed, quantising of its activations included.

    Attributes:
        format: A key of `autoprec.kernels.formats.FORMATS`.
        implementation: What computed it.
        rows: Rows of the activations.
        inputs: Input features.
        outputs: Output features.
        seconds: Median of one run.
        over_bf16: The ratio to bf16, timed in turns; `None` for bf16 itself.
    """

    format: Name
    implementation: Name
    rows: Size
    inputs: Size
    outputs: Size
    seconds: Positive
    over_bf16: Ratio | None

    @property
    def key(self) -> tuple[str, str, int, int, int]:
        """What there is one figure of."""
        return (self.format, self.implementation, self.rows, self.inputs, self.outputs)


class ProfiledDevice(_Model):
    """Where the figures were measured.

    Attributes:
        name: As the driver calls it, `NVIDIA H200`.
        capability: What kernels are chosen by, `sm_90`.
        driver: Release of the driver, or `None`.
        versions: Library to release.
    """

    name: Name
    capability: Name
    driver: Annotated[str, Field(max_length=200)] | None
    versions: dict[Name, Name]


class DeviceProfile(_Model):
    """The times of layers on a device.

    Attributes:
        schema_version: The file's `schema`.
        device: Where they were measured.
        measured_at: When.
        method: How, in words.
        ceilings: Best rates measured: `copy` in bytes, the number types in operations a second.
        layers: Each format, implementation and shape once.
    """

    schema_version: Literal["autoprec.device-profile/1"] = Field(alias="schema")
    device: ProfiledDevice
    measured_at: AwareDatetime
    method: Annotated[str, Field(max_length=2000)]
    ceilings: dict[Name, Positive]
    layers: Annotated[tuple[Layer, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _distinct(self) -> DeviceProfile:
        places: dict[tuple[str, str, int, int, int], int] = {}
        for place, layer in enumerate(self.layers):
            if (first := places.setdefault(layer.key, place)) != place:
                raise ValueError(
                    f"layers.{place} has the format, implementation and shape of layers.{first}: "
                    f"{layer.format} by {layer.implementation}, "
                    f"{layer.rows} x {layer.inputs} x {layer.outputs}"
                )
        return self

    @property
    def digest(self) -> str:
        """Digest of the content, by which the same profile is known again."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats that were measured, in the order of the file."""
        return tuple(dict.fromkeys(layer.format for layer in self.layers))

    def to_json(self) -> str:
        """Return the profile as JSON text; equal profiles give equal texts."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), sort_keys=True)

    @classmethod
    def from_json(cls, text: str, *, source: str = "device profile") -> DeviceProfile:
        """Validate a profile given as JSON text; `source` names it in errors.

        Raises:
            DeviceProfileError: The text is not a valid profile; names the first place that is wrong.
        """
        try:
            data = parse(text)
        except (ValueError, RecursionError) as error:
            raise DeviceProfileError(f"{source} is not a valid device profile: {error}") from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            seen = reprlib.repr(data.get("schema") if isinstance(data, dict) else data)
            raise DeviceProfileError(
                f"{source} has schema {seen}; this version reads {SCHEMA!r}, as benchmarks/kernels/run.py "
                "writes it"
            )
        try:
            # Strict: a figure as text is refused.
            return cls.model_validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "the profile as a whole"
            more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
            raise DeviceProfileError(
                f"{source} is not a valid device profile: at {place}: {first['msg']}{more}"
            ) from error

    @classmethod
    def load(cls, path: Path) -> DeviceProfile:
        """Read and validate a file.

        Raises:
            DeviceProfileError: It is missing, too large, or not a valid profile.
        """
        named = f"device profile {str(path)!r}"
        try:
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise DeviceProfileError(
                    f"{named} has more than the {MAX_BYTES // 2**20} MB that it may have"
                )
            text = content.decode()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise DeviceProfileError(f"cannot read {named}: {reason}") from error
        return cls.from_json(text, source=named)


@dataclass(frozen=True)
class Prediction:
    """What a layer is expected to take on a profiled device.

    Attributes:
        seconds: Of one run.
        measured: Whether this very shape was measured.
        extrapolated: Whether the shape lies outside of what was measured, so that the figure is a guess.
        implementation: The fastest one for it.
    """

    seconds: float
    measured: bool
    extrapolated: bool
    implementation: str


def predict_seconds(
    profile: DeviceProfile, format_name: str, rows: int, inputs: int, outputs: int
) -> Prediction | None:
    """Predict the time of a linear layer, by the fastest implementation; `None` for a format not measured.

    Along the rows, times are interpolated linearly between logarithms; then so along the size of the weight,
    between the nearest smaller and larger ones that were measured. (The product of the three alone would not
    do: one row of a large weight and many of a small one have the same, and one waits for memory while the
    other computes.) Beyond what was measured, the time grows with the work; below, it stays as it is, since
    starting a kernel takes its time.

    Args:
        profile: The profile.
        format_name: A format.
        rows: Rows of the activations.
        inputs: Input features.
        outputs: Output features.

    Raises:
        ValueError: A size is not above zero.
    """
    _check_sizes(rows, inputs, outputs)
    found = [
        _predict(layers, rows, inputs, outputs)
        for layers in _by_implementation(profile, format_name).values()
    ]
    return min(found, key=lambda item: item.seconds, default=None)


def slower_than_bf16(
    profile: DeviceProfile, format_name: str, rows: int, inputs: int, outputs: int
) -> bool | None:
    """Say whether a format was measured slower than bf16 at the nearest shape.

    A format is slower where each of its implementations is. Nearest is by the logarithms of the three sizes.

    Returns:
        Whether it was slower, or `None` where the format was not measured.

    Raises:
        ValueError: A size is not above zero.
    """
    _check_sizes(rows, inputs, outputs)
    sizes = (rows, inputs, outputs)
    nearest = [
        min(layers, key=lambda layer: _distance((layer.rows, layer.inputs, layer.outputs), sizes))
        for layers in _by_implementation(profile, format_name).values()
    ]
    if not nearest:
        return None
    ratios = [layer.over_bf16 for layer in nearest]
    if any(ratio is None for ratio in ratios):
        return False if format_name == BASELINE else None
    return all(ratio is not None and ratio.value < 1 for ratio in ratios)


def _check_sizes(rows: int, inputs: int, outputs: int) -> None:
    for name, size in (("rows", rows), ("inputs", inputs), ("outputs", outputs)):
        if size <= 0:
            raise ValueError(f"{name} is {size}; give a number above zero")


def _by_implementation(profile: DeviceProfile, format_name: str) -> dict[str, list[Layer]]:
    found: dict[str, list[Layer]] = {}
    for layer in profile.layers:
        if layer.format == format_name:
            found.setdefault(layer.implementation, []).append(layer)
    return found


def _distance(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    return sum(math.log(a / b) ** 2 for a, b in zip(one, other, strict=True))


def _predict(layers: list[Layer], rows: int, inputs: int, outputs: int) -> Prediction:
    """Predict by the layers of one implementation."""
    weights: dict[tuple[int, int], dict[int, float]] = {}
    for layer in layers:
        weights.setdefault((layer.inputs, layer.outputs), {})[layer.rows] = layer.seconds
    if (inputs, outputs) in weights:
        known = weights[inputs, outputs]
        seconds, inside = _along(rows, known)
        return Prediction(seconds, rows in known, not inside, layers[0].implementation)
    size = inputs * outputs
    # Of weights of one size, the one of the nearest proportions.
    nearest: dict[int, tuple[int, int]] = {}
    for shape in sorted(weights, key=lambda shape: abs(math.log(shape[0] / inputs)), reverse=True):
        nearest[shape[0] * shape[1]] = shape
    smaller = max((other for other in nearest if other <= size), default=None)
    larger = min((other for other in nearest if other >= size), default=None)
    bounds: dict[int, float] = {}
    inside = True
    for other in (smaller, larger):
        if other is not None:
            bounds[other], within = _along(rows, weights[nearest[other]])
            inside = inside and within
    seconds, within = _along(size, bounds)
    return Prediction(seconds, False, not (inside and within), layers[0].implementation)


def _along(size: int, known: dict[int, float]) -> tuple[float, bool]:
    """Return the time at a size between known ones, and whether it is between them."""
    smaller = max((other for other in known if other <= size), default=None)
    larger = min((other for other in known if other >= size), default=None)
    if smaller is None:
        return known[min(known)], False
    if larger is None:
        return known[smaller] * size / smaller, False
    if smaller == larger:
        return known[smaller], True
    share = math.log(size / smaller) / math.log(larger / smaller)
    return math.exp((1 - share) * math.log(known[smaller]) + share * math.log(known[larger])), True
