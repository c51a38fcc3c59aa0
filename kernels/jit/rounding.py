"""Rounding inside Triton kernels: to fp8 and bfloat16 in integers, to integers, and scales to powers of two.

Rounding to fp8 in integers serves three ends: stochastic rounding, which no instruction does; processors
without the type; and Triton's interpreter, whose own cast to fp8 e4m3 is wrong for ties, overflow and
subnormal numbers (Triton 3.6 to 3.8).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def round_even(x):
    """Round float32 of magnitude up to 2^22 to the nearest integer, ties to even; NaN stays NaN."""
    # Adding 1.5 * 2^23 leaves no bits for a fraction. `libdevice.rint` does not run in the interpreter.
    return (x + 12582912.0) - 12582912.0


@triton.jit
def encode_fp8(x, random, MANTISSA: tl.constexpr, STOCHASTIC: tl.constexpr):
    """Round float32 to the codes of an fp8 type, saturating; NaN becomes the type's NaN (0x7F).

    Args:
        x: float32.
        random: uint32, uniform; read where `STOCHASTIC`.
        MANTISSA: 3 for e4m3fn, 2 for e5m2.
        STOCHASTIC: Round up with the probability that makes the mean exact, instead of to the nearest.

    Returns:
        uint8, the bits of the number.
    """
    BIAS: tl.constexpr = 7 if MANTISSA == 3 else 15
    LARGEST: tl.constexpr = 448.0 if MANTISSA == 3 else 57344.0
    SHIFT: tl.constexpr = 23 - MANTISSA
    SMALLEST_NORMAL: tl.constexpr = 2.0 ** (1 - BIAS)
    STEPS: tl.constexpr = 2.0 ** (BIAS - 1 + MANTISSA)
    size = tl.minimum(tl.abs(x), LARGEST)
    bits = size.to(tl.int32, bitcast=True)
    # Subnormal numbers are multiples of one step, and their code is the multiple.
    steps = size * STEPS
    if STOCHASTIC:
        normal = bits + (random & ((1 << SHIFT) - 1)).to(tl.int32)
        # 24 bits are what float32 holds of a number below 1.
        small = tl.floor(tl.minimum(steps, 2.0 * (1 << MANTISSA)) + (random >> 8).to(tl.float32) * 2.0**-24)
    else:
        normal = bits + ((1 << (SHIFT - 1)) - 1) + ((bits >> SHIFT) & 1)
        small = round_even(tl.minimum(steps, 2.0 * (1 << MANTISSA)))
    normal = (normal >> SHIFT) - ((127 - BIAS) << MANTISSA)
    code = tl.where(size < SMALLEST_NORMAL, small.to(tl.int32), normal)
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (tl.where(x == x, code, 0x7F) | sign).to(tl.uint8)


@triton.jit
def decode_fp8(code, MANTISSA: tl.constexpr):
    """Return the float32 values of the codes (uint8) of an fp8 type; its infinities are not decoded."""
    BIAS: tl.constexpr = 7 if MANTISSA == 3 else 15
    STEP: tl.constexpr = 2.0 ** (1 - BIAS - MANTISSA)
    size = (code & 0x7F).to(tl.int32)
    normal = ((size << (23 - MANTISSA)) + ((127 - BIAS) << 23)).to(tl.float32, bitcast=True)
    value = tl.where(size < (1 << MANTISSA), size.to(tl.float32) * STEP, normal)
    value = tl.where(size == 0x7F, float("nan"), value)
    return tl.where(code >= 0x80, -value, value)


@triton.jit
def to_bf16(x, random, STOCHASTIC: tl.constexpr):
    """Round float32 to bfloat16 in integers: to the nearest, ties to even, or so that the mean is exact.

    The interpreter's own cast truncates, and no instruction rounds stochastically.

    Args:
        x: float32.
        random: uint32, uniform; read where `STOCHASTIC`.
        STOCHASTIC: Round up with the probability that makes the mean exact, instead of to the nearest.
    """
    bits = x.to(tl.uint32, bitcast=True)
    if STOCHASTIC:
        upper = (bits + (random & 0xFFFF)) >> 16
    else:
        upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(x == x, upper, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def scale_of(amax, LARGEST: tl.constexpr, POWER_OF_TWO: tl.constexpr):
    """Return the scale that maps magnitudes up to `amax` to numbers up to `LARGEST`; never zero.

    A power of two is rounded up, so that nothing saturates. NaN and inf stay.
    """
    scale = tl.div_rn(amax, tl.full(amax.shape, LARGEST, tl.float32))
    scale = tl.where(scale < 1.1754943508222875e-38, 1.1754943508222875e-38, scale)
    if POWER_OF_TWO:
        bits = scale.to(tl.int32, bitcast=True)
        raised = ((bits + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
        scale = tl.where(scale == scale, raised, scale)
    return scale


@triton.jit
def max_magnitude(x, AXIS: tl.constexpr):
    """Return the largest magnitude along an axis, NaN where there is a NaN (`tl.max` alone skips it)."""
    largest = tl.max(tl.abs(tl.where(x == x, x, 0.0)), axis=AXIS)
    broken = tl.max((x != x).to(tl.int32), axis=AXIS)
    return tl.where(broken > 0, float("nan"), largest)


@triton.jit
def round_to(x, random, KIND: tl.constexpr, STOCHASTIC: tl.constexpr, HARDWARE: tl.constexpr):
    """Round scaled float32 to a number type, saturating.

    Args:
        x: float32, already divided by its scale.
        random: uint32, uniform; read where `STOCHASTIC`.
        KIND: `int8`, `e4m3` or `e5m2`.
        STOCHASTIC: Round so that the mean is exact.
        HARDWARE: Whether the processor rounds to fp8 itself.

    Returns:
        int8 (0 for NaN); fp8 where `HARDWARE` and to the nearest; else uint8, the bits of fp8.
    """
    if KIND == "int8":
        if STOCHASTIC:
            whole = tl.floor(x + (random >> 8).to(tl.float32) * 2.0**-24)
        else:
            whole = round_even(x)
        whole = tl.minimum(tl.maximum(tl.where(x == x, whole, 0.0), -127.0), 127.0)
        result = whole.to(tl.int8)
    elif HARDWARE and not STOCHASTIC:
        if KIND == "e4m3":
            result = tl.clamp(x, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e4nv)
        else:
            result = tl.clamp(x, -57344.0, 57344.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e5)
    else:
        result = encode_fp8(x, random, 3 if KIND == "e4m3" else 2, STOCHASTIC)
    return result
