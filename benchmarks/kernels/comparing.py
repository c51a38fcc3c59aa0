"""How a kernel's result is compared with its reference's, and what is said where it differs."""

from __future__ import annotations

import torch
from torch import Tensor


def spiked(shape: tuple[int, int], seed: int = 0) -> Tensor:
    """Return float32 numbers over many magnitudes, zeros, subnormals and extremes among them.

    Args:
        shape: At least 4 rows, and 24 elements.
        seed: Of the numbers, which are on the CPU.
    """
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(shape, generator=generator) * torch.exp(3 * torch.randn(shape, generator=generator))
    flat = numbers.view(-1)
    for place, value in ((2, 0.0), (5, 1e-42), (11, 3e38), (23, -3e38)):
        flat[place] = value
    numbers[3] = 0
    return numbers


def differing_bits(found: Tensor, expected: Tensor) -> str:
    """Say how many elements differ at all, all NaN being one; empty where none does."""
    found, expected = found.cpu(), expected.cpu()
    if found.shape != expected.shape or found.dtype is not expected.dtype:
        return f"{found.dtype} of {list(found.shape)} instead of {expected.dtype} of {list(expected.shape)}"
    one, other = found.float(), expected.float()
    wrong = ~((one == other) | (one.isnan() & other.isnan()))
    if not wrong.any():
        return ""
    place = tuple(int(index) for index in wrong.nonzero()[0])
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements differ, first at {list(place)}: "
        f"{float(one[place])!r} instead of {float(other[place])!r}"
    )


def beyond_neighbours(found: Tensor, expected: Tensor, share: float) -> str:
    """Say where int8 or fp8 numbers are not what is expected nor beside it, or too often only beside it.

    Args:
        found: What a kernel made.
        expected: The reference's, of the same type and shape.
        share: Of the elements, how many may be the next number of the type; one of them always may.
    """
    if found.shape != expected.shape or found.dtype is not expected.dtype:
        return f"{found.dtype} of {list(found.shape)} instead of {expected.dtype} of {list(expected.shape)}"
    apart = (_ordered(found.cpu()) - _ordered(expected.cpu())).abs()
    furthest, count = int(apart.max()), int((apart > 0).sum())
    if furthest > 1:
        return f"{int((apart > 1).sum())} of {apart.numel()} elements differ by more than a step"
    allowed = 1 + int(share * apart.numel())
    return "" if count <= allowed else f"{count} of {apart.numel()} elements are a step off, above {allowed}"


def _ordered(codes: Tensor) -> Tensor:
    """Return whole numbers of which neighbours in the type are 1 apart; NaN is far from all others."""
    bits = codes.view(torch.int8).int()
    if codes.dtype is torch.int8:
        return bits
    size = bits & 0x7F
    return torch.where(codes.float().isnan(), 1000, torch.where(bits < 0, -size, size))


def too_far(found: Tensor, expected: Tensor, tolerance: float) -> str:
    """Say by how much results differ, RMS of the difference over RMS of `expected`; empty where little."""
    found, expected = found.cpu().double(), expected.cpu().double()
    if found.shape != expected.shape:
        return f"shape {list(found.shape)} instead of {list(expected.shape)}"
    if not bool(found.isfinite().all()):
        return f"{int((~found.isfinite()).sum())} of {found.numel()} elements are not finite"
    size = float(expected.square().mean().sqrt())
    ratio = float((found - expected).square().mean().sqrt()) / max(size, 1e-300)
    return "" if ratio <= tolerance else f"differs by {ratio:.2e} of its RMS, more than {tolerance:.0e}"
