"""The reference of each format: quantise, dequantise, then compute in fp32. This defines the numerics.

Implementations are compared with it by RMS ratio, within `TOLERANCE`. What it does with unusual numbers:

- `int8_dynamic` has one scale a tensor, so one NaN or inf makes the whole output NaN. Its scale is at least
  6.1e-5 (torch's own floor), so inputs whose range is below 0.016 lose resolution.
- `int8_dynamic_row`, fp8: NaN or inf makes its row NaN (fp8: NaN stays NaN).
- `int8_static` saturates at the calibrated range, inf included; NaN makes its row NaN.
- fp16 overflows to inf beyond 65504, as the type does. fp8 saturates.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoprec.errors import ConversionError
from autoprec.kernels import quantize
from autoprec.kernels.calibration import Calibration
from autoprec.kernels.formats import BLOCK_SIZE, FORMATS

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_LEVELS = {"uint8": 255, "uint7": 127}

TOLERANCE: dict[str, float] = {
    # Unit roundoff of the output (2^-8 for bf16, 2^-11 for fp16), doubled where accumulation rounds too.
    # Integer arithmetic is exact, so int8 paths differ in the last bits of fp32 and in rare ties of the
    # rounding, each worth one step of about 1% of the input's spread.
    "fp32": 1e-5,
    "bf16": 2**-7,
    "fp16": 2**-10,
    "fp16_weight": 1e-5,
    "int8_dynamic": 2e-3,
    "int8_dynamic_row": 2e-3,
    "int8_static": 2e-3,
    "int8_weight_only": 2**-7,
    "int4_weight_only": 2**-7,
    # Hopper's matrix unit cuts each product of a sum at 2^-13 of the largest, 128 of them at a time.
    "fp8_e4m3": 2e-3,
    "fp8_e5m2": 2e-3,
    "fp8_block": 2e-3,
    "int8_dynamic_7bit": 2e-3,
    "int8_static_7bit": 2e-3,
    # Every input is a product here, so that ties are likelier; one of them is 0.2% of a row of 16.
    "int8_dynamic_smooth": 4e-3,
    "int8_static_smooth": 2e-3,
    "int4_dynamic": 2e-3,
}
"""Largest RMS of (implementation - reference) over the RMS of the reference, for ordinary inputs."""


def linear(
    format_name: str,
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    calibration: Calibration | None = None,
) -> Tensor:
    """Return `inputs @ weight.T + bias` in a format.

    Args:
        format_name: A key of `FORMATS`.
        inputs: [..., inputs].
        weight: [outputs, inputs].
        bias: [outputs], or `None`.
        calibration: What calibration told of the input; for the formats that need it.

    Returns:
        fp32 of shape [..., outputs]; an implementation rounds it to the module's dtype.
    """
    rows = inputs.reshape(-1, weight.shape[1])
    if FORMATS[format_name].smooth:
        factors = smoothing_factors(format_name, calibration, weight.shape[1])
        rows, weight = rows.float() * (1 / factors), weight.float() * factors
    result = F.linear(
        fake_inputs(format_name, rows, calibration), fake_weight(format_name, weight), _float(bias)
    )
    return result.reshape(*inputs.shape[:-1], weight.shape[0])


def conv2d(
    format_name: str, inputs: Tensor, module: nn.Conv2d, calibration: Calibration | None = None
) -> Tensor:
    """Return what `module` computes of `inputs` [(batch,) channels, height, width] in a format, in fp32."""
    fake = nn.Conv2d(
        module.in_channels,
        module.out_channels,
        module.kernel_size,  # type: ignore[arg-type]
        module.stride,  # type: ignore[arg-type]
        module.padding,  # type: ignore[arg-type]
        module.dilation,  # type: ignore[arg-type]
        module.groups,
        module.bias is not None,
        module.padding_mode,
        device="meta",
    )
    fake.weight = nn.Parameter(fake_weight(format_name, module.weight.detach()), requires_grad=False)
    fake.bias = (
        None if module.bias is None else nn.Parameter(module.bias.detach().float(), requires_grad=False)
    )
    result: Tensor = fake(fake_inputs(format_name, inputs, calibration))
    return result


def embedding(format_name: str, indices: Tensor, weight: Tensor) -> Tensor:
    """Return the rows of `weight` [rows, width] at `indices` as a format holds them, in fp32."""
    return fake_weight(format_name, weight)[indices]


def fake_weight(format_name: str, weight: Tensor) -> Tensor:
    """Return a weight [channels, ...] in fp32 as the format holds it."""
    fmt = FORMATS[format_name]
    if fmt.weight == "int8":
        dtype = torch.bfloat16 if fmt.activation_scale == "none" else torch.float32
        return quantize.int8_channel(weight, dtype).dequantize()
    if fmt.weight == "int4":
        return (quantize.int4_affine if fmt.activation == "int8" else quantize.int4_group)(
            weight
        ).dequantize()
    if fmt.weight in _DTYPES:
        return weight.to(_DTYPES[fmt.weight]).float()
    dtype = getattr(torch, fmt.weight)
    scale = (
        quantize.fp8_block_scale(weight, BLOCK_SIZE)
        if fmt.weight_scale == "block"
        else quantize.fp8_row_scale(weight, dtype)
    )
    return quantize.fake_fp8(weight, dtype, scale)


def fake_inputs(format_name: str, inputs: Tensor, calibration: Calibration | None) -> Tensor:
    """Return inputs in fp32 as they enter the format's arithmetic.

    Raises:
        ConversionError: The format is static and `calibration` is `None`.
    """
    fmt = FORMATS[format_name]
    if fmt.activation in _DTYPES:
        return inputs.to(_DTYPES[fmt.activation]).float()
    if inputs.numel() == 0:
        return inputs.float()
    if fmt.activation_scale == "static":
        if calibration is None:
            raise ConversionError(f"{format_name} needs an input range from calibration, got None")
        levels = _LEVELS[fmt.activation]
        step, zero = quantize.affine_parameters(calibration.low, calibration.high, levels)
        return quantize.fake_affine(inputs, step, zero, levels)
    if fmt.activation in _LEVELS:
        return quantize.fake_dynamic(inputs, _LEVELS[fmt.activation])
    if fmt.activation == "int8":
        return quantize.fake_group(inputs) if fmt.activation_scale == "group" else quantize.fake_row(inputs)
    dtype = getattr(torch, fmt.activation)
    scale = (
        quantize.fp8_block_scale(inputs, 1)
        if fmt.activation_scale == "block"
        else quantize.fp8_row_scale(inputs, dtype)
    )
    return quantize.fake_fp8(inputs, dtype, scale)


def smoothing_factors(format_name: str, calibration: Calibration | None, inputs: int) -> Tensor:
    """Return the factor of each input channel, float32[inputs].

    Raises:
        ConversionError: There are none, or they are for another number of channels.
    """
    found = 0 if calibration is None else len(calibration.smoothing)
    if calibration is None or found != inputs:
        raise ConversionError(
            f"{format_name} needs {inputs} smoothing exponents from calibration, got {found}"
        )
    return calibration.factors()


def _float(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.float()
