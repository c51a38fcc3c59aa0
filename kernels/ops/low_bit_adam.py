"""`low_bit_adam`: one AdamW step in place, with moments of 8 or 16 bits.

AdamW is Loshchilov and Hutter, 2019, as `torch.optim.AdamW` computes it, all in float32. The second moment is
held as its root, whose range e4m3 covers: 2.3e5 from the largest of a block to the smallest. A root that is
not zero is never rounded to zero, for the step divides by it. Stochastic rounding keeps what is too small for
a nearest neighbour to move: a second moment decays by 0.05% a step, a sixtieth of half a step of e4m3.

NaN or inf in a gradient spoils the 256 elements of its block where moments have 8 bits, and its own element
where they have 16, as in float32. Nothing checks for it; skip such steps, as loss scalers do.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from autoprec.kernels.ops.operator import define_operator
from autoprec.kernels.ops.quantize import scale_from

BLOCK = 256
"""Elements of an 8-bit moment that share a scale, as in Dettmers et al., 2022."""
SMALLEST_ROOT = 2.0**-9
"""Smallest number of e4m3: what roots below it are raised to, before their scale."""
_FLOATS = (torch.float32, torch.bfloat16)


class Moment(NamedTuple):
    """A moment, or the root of one.

    Attributes:
        values: bfloat16 [elements], or the bits of e4m3 as uint8 [elements].
        scale: float32 [ceil(elements / 256)] of e4m3, empty beside bfloat16.
    """

    values: Tensor
    scale: Tensor

    @classmethod
    def zeros(cls, like: Tensor, bits: int) -> Moment:
        """Return zeros in 8 or 16 bits for each element of a tensor, on its device."""
        count = like.numel()
        blocks = -(-count // BLOCK) if bits == 8 else 0
        dtype = torch.uint8 if bits == 8 else torch.bfloat16
        scale = torch.full((blocks,), torch.finfo(torch.float32).tiny, device=like.device)
        return cls(torch.zeros(count, dtype=dtype, device=like.device), scale)

    def dequantize(self) -> Tensor:
        """Return it in float32 [elements]."""
        if self.values.dtype is torch.bfloat16:
            return self.values.float()
        scale = self.scale.repeat_interleave(BLOCK)[: self.values.numel()]
        return self.values.view(torch.float8_e4m3fn).float() * scale


def low_bit_adam(
    parameter: Tensor,
    gradient: Tensor,
    first: Moment,
    second: Moment,
    *,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    seed: int | None = None,
) -> None:
    """Change a parameter and its moments by one step.

    Args:
        parameter: float32 or bfloat16 [elements], contiguous.
        gradient: The same; its type may differ.
        first: Mean of the gradients, of 8 or 16 bits.
        second: Root of the mean of their squares, of 8 or 16 bits.
        step: Which step it is, from 1.
        lr: Learning rate.
        betas: Decay of the two means, in [0, 1).
        eps: Added to the root; at least 0.
        weight_decay: Part of the parameter that is taken away at a learning rate of 1.
        seed: Round what has 8 or 16 bits stochastically, another seed a step; to the nearest where `None`.

    Raises:
        ValueError: A shape, a dtype, a device or a number is none of these.
    """
    _check_tensors(parameter, gradient, first, second)
    if step < 1:
        raise ValueError(f"step must be at least 1, got {step}")
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas must be in [0, 1), got {betas}")
    if not eps >= 0:
        raise ValueError(f"eps must be at least 0, got {eps}")
    numbers = (lr, *betas, eps, weight_decay, step, seed)
    torch.ops.autoprec.low_bit_adam(parameter, gradient, *first, *second, *numbers)


def corrected(lr: float, beta1: float, beta2: float, decay: float, step: int) -> tuple[float, float, float]:
    """Return the factors of a step: for the quotient of the moments, the root and the parameter."""
    return lr / (1 - beta1**step), 1 / math.sqrt(1 - beta2**step), 1 - lr * decay


def reference(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    first_scale: Tensor,
    second: Tensor,
    second_scale: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    step: int,
    seed: int | None,
) -> None:
    """Compute `low_bit_adam` in plain torch."""
    size, correction, kept = corrected(lr, beta1, beta2, decay, step)
    generator = None if seed is None else torch.Generator(parameter.device).manual_seed(seed)
    slope = gradient.float()
    mean = Moment(first, first_scale).dequantize() * beta1 + slope * (1 - beta1)
    root = Moment(second, second_scale).dequantize()
    # Through float64, as a float32 root of MKL is off by one in the last bit for one number in five.
    root = (root * root * beta2 + slope * (1 - beta2) * slope).double().sqrt().float()
    moved = parameter.float() * kept - (mean / (root * correction + eps)) * size
    _hold(mean, first, first_scale, 0.0, generator)
    _hold(root, second, second_scale, SMALLEST_ROOT, generator)
    parameter.copy_(moved if parameter.dtype is torch.float32 else _to_bf16(moved, generator))


def _hold(
    numbers: Tensor, values: Tensor, scale: Tensor, floor: float, generator: torch.Generator | None
) -> None:
    """Round numbers into a moment."""
    if values.dtype is torch.bfloat16:
        values.copy_(_to_bf16(numbers, generator))
        return
    count = numbers.numel()
    tiles = F.pad(numbers, (0, -count % BLOCK)).view(-1, BLOCK)
    if count:
        scale.copy_(scale_from(tiles.abs().amax(1), torch.float8_e4m3fn, False))
    scaled = (tiles / scale[:, None]).clamp(-448, 448)
    scaled = torch.where((tiles > 0) & (scaled < floor), floor, scaled).view(-1)[:count]
    if generator is not None:
        _, exponent = torch.frexp(scaled.abs().clamp_min(2.0**-6))
        step = torch.ldexp(torch.ones_like(scaled), exponent - 4)
        scaled = (scaled / step + _uniform(scaled, generator)).floor() * step
    values.copy_(scaled.to(torch.float8_e4m3fn).view(torch.uint8))


def _to_bf16(numbers: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return numbers.bfloat16()
    bits = numbers.view(torch.int32)
    raised = (bits + (_uniform(numbers, generator) * 65536).int()) & ~0xFFFF
    return torch.where(numbers.isnan(), numbers, raised.view(torch.float32)).bfloat16()


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=generator, device=like.device)


def _check_tensors(parameter: Tensor, gradient: Tensor, first: Moment, second: Moment) -> None:
    count, device = parameter.numel(), parameter.device
    held = (("first", first), ("second", second))
    flat = [("parameter", parameter), ("gradient", gradient), *((name, item.values) for name, item in held)]
    for name, tensor in flat:
        if tensor.layout is not torch.strided or tensor.shape != (count,) or not tensor.is_contiguous():
            raise ValueError(f"{name} must be dense [{count}] and contiguous, got {tuple(tensor.shape)}")
        if tensor.device != device:
            raise ValueError(f"{name} must be on {device} as parameter, got {tensor.device}")
    for name, tensor in flat[:2]:
        if tensor.dtype not in _FLOATS:
            raise ValueError(f"{name} must be float32 or bfloat16, got {tensor.dtype}")
    for name, (values, scale) in held:
        if values.dtype not in (torch.uint8, torch.bfloat16):
            raise ValueError(f"{name} must hold uint8 or bfloat16, got {values.dtype}")
        blocks = -(-count // BLOCK) if values.dtype is torch.uint8 else 0
        if scale.shape != (blocks,) or scale.dtype is not torch.float32 or scale.device != device:
            raise ValueError(
                f"scale of {name} must be float32 [{blocks}] on {device},"
                f" got {scale.dtype} {tuple(scale.shape)} on {scale.device}"
            )
        if not scale.is_contiguous():
            raise ValueError(f"scale of {name} must be contiguous, got strides {scale.stride()}")


def _fake(*arguments: Any) -> None:
    """There is nothing to make."""


define_operator(
    "low_bit_adam",
    "(Tensor(a!) parameter, Tensor gradient, Tensor(b!) first, Tensor(c!) first_scale, Tensor(d!) second,"
    " Tensor(e!) second_scale, float lr, float beta1, float beta2, float eps, float decay, int step,"
    " int? seed) -> ()",
    reference,
    _fake,
)
