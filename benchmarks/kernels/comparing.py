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
