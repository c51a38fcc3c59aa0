"""Comparisons of a kernel with its reference."""

import torch


def spiked(shape, dtype=torch.float32, seed=0, device="cpu"):
    """Return numbers over many magnitudes, with rows of zeros, subnormal numbers and extremes among them."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(shape, generator=generator) * torch.exp(3 * torch.randn(shape, generator=generator))
    flat = numbers.view(-1)
    for place, value in ((2, 0.0), (5, 1e-42), (11, 3e38), (23, -3e38)):
        if place < flat.numel():
            flat[place] = value
    if len(shape) > 1 and shape[0] > 3:
        numbers[3] = 0
    return numbers.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype).to(device)


def same(found, expected):
    """Return whether two tensors agree in every bit, all NaN being one."""
    if found.shape != expected.shape or found.dtype is not expected.dtype:
        return False
    found, expected = found.cpu().float(), expected.cpu().float()
    return bool(((found == expected) | (found.isnan() & expected.isnan())).all())


def rms_ratio(found, expected):
    """Return RMS of the difference over RMS of what is expected."""
    found, expected = found.double(), expected.double()
    return float(
        (found - expected).square().mean().sqrt() / expected.square().mean().sqrt().clamp_min(1e-300)
    )
