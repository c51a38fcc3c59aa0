"""The numeric formats a unit can run in: names, number types and granularity. No torch needed.

A format fixes the *numerics*; `autoprec.kernels.registry` holds the implementations that compute it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoprec.errors import SettingError

GROUP_SIZE = 64
"""Input elements that share a scale and a zero in 4-bit weights."""
BLOCK_SIZE = 128
"""Elements along each side of an fp8 block, as in DeepSeek-V3."""


@dataclass(frozen=True, slots=True)
class Format:
    """A named precision recipe for a unit.

    Attributes:
        name: How plans, tables and options name it.
        weight: Number type in which weights are held.
        activation: Number type in which the inputs enter the arithmetic.
        weight_scale: Elements that share one weight scale: `none`, `tensor`, `channel` (one output
            channel, or one row of an embedding), `group` (`GROUP_SIZE` elements of a channel) or `block`
            (`BLOCK_SIZE` squared).
        activation_scale: The same for inputs: `none`, `tensor`, `static` (one scale fixed by
            calibration), `row` (one token), `group` (`GROUP_SIZE` elements of a row) or `block`
            (`BLOCK_SIZE` of them).
        bits: Bits of one held weight, scales aside.
        summary: One line for people.
        stands_in_for: The format that this one replaces on processors that cannot run it; it is not offered
            where that one runs.
        smooth: Whether input channels are divided by calibrated factors, and the weight multiplied by them.
    """

    name: str
    weight: str
    activation: str
    weight_scale: str
    activation_scale: str
    bits: int
    summary: str
    stands_in_for: str | None = None
    smooth: bool = False

    @property
    def calibrated(self) -> bool:
        """Whether the format needs to know the input from calibration batches."""
        return self.smooth or self.activation_scale == "static"

    @property
    def unsmoothed(self) -> str:
        """Name of the format that this one is without smoothing."""
        return self.name.removesuffix("_smooth")


_ALL = (
    Format("fp32", "float32", "float32", "none", "none", 32, "single precision"),
    Format("bf16", "bfloat16", "bfloat16", "none", "none", 16, "bfloat16 weights and activations"),
    Format("fp16", "float16", "float16", "none", "none", 16, "half precision weights and activations"),
    Format("fp16_weight", "float16", "float32", "none", "none", 16, "fp16 weights, fp32 arithmetic"),
    Format("int8_dynamic", "int8", "uint8", "channel", "tensor", 8,
           "int8 weights, 8-bit activations scaled for each tensor as it comes"),
    Format("int8_dynamic_row", "int8", "int8", "channel", "row", 8,
           "int8 weights, 8-bit activations scaled for each row (token) as it comes"),
    Format("int8_static", "int8", "uint8", "channel", "static", 8,
           "int8 weights, 8-bit activations with a scale fixed by calibration"),
    Format("int8_weight_only", "int8", "bfloat16", "channel", "none", 8,
           "int8 weights, bfloat16 activations"),
    Format("int4_weight_only", "int4", "bfloat16", "group", "none", 4,
           "4-bit weights in groups of 64, bfloat16 activations"),
    Format("fp8_e4m3", "float8_e4m3fn", "float8_e4m3fn", "channel", "row", 8, "8-bit float, 4-bit exponent"),
    Format("fp8_e5m2", "float8_e5m2", "float8_e5m2", "channel", "row", 8, "8-bit float, 5-bit exponent"),
    Format("fp8_block", "float8_e4m3fn", "float8_e4m3fn", "block", "block", 8,
           "fp8 e4m3 scaled by 1×128 activations and 128×128 weights"),
    Format("int8_dynamic_7bit", "int8", "uint7", "channel", "tensor", 8,
           "int8_dynamic with 7-bit activations, whose products do not saturate on processors without VNNI",
           "int8_dynamic"),
    Format("int8_static_7bit", "int8", "uint7", "channel", "static", 8,
           "int8_static with 7-bit activations, whose products do not saturate on processors without VNNI",
           "int8_static"),
    Format("int8_dynamic_smooth", "int8", "uint8", "channel", "tensor", 8,
           "int8_dynamic with input channels smoothed (SmoothQuant)", smooth=True),
    Format("int8_static_smooth", "int8", "uint8", "channel", "static", 8,
           "int8_static with input channels smoothed (SmoothQuant)", smooth=True),
    Format("int4_dynamic", "int4", "int8", "group", "group", 4,
           "4-bit weights in groups of 64 with whole zero points, 8-bit activations scaled for each 64"),
)  # fmt: skip

FORMATS: dict[str, Format] = {item.name: item for item in _ALL}
"""Every format by name. The order is the action vocabulary of the environments: append, never reorder."""


def parse_formats(names: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the format names of `--formats` in vocabulary order; `None` means all that are native.

    Raises:
        SettingError: A name is unknown, or the list is empty.
    """
    if names is None:
        return None
    asked = [part.strip() for part in (names.split(",") if isinstance(names, str) else names)]
    asked = [name for name in asked if name]
    if not asked:
        raise SettingError(f"formats is empty; give some of {', '.join(FORMATS)}")
    for name in asked:
        if name not in FORMATS:
            raise SettingError(f"unknown format {name!r} in formats; known: {', '.join(FORMATS)}")
    return tuple(name for name in FORMATS if name in asked)
