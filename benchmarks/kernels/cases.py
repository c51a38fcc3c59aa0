"""What an operation's file in `subjects` describes: checks that it must pass, and timings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Call = Callable[[], object]
BANDWIDTH = "bandwidth"
"""What a goal is a share of where it is no rival's speed: the measured bandwidth of memory."""


@dataclass(frozen=True)
class Check:
    """One comparison of a kernel with its reference.

    Attributes:
        variant: The specialisation of the kernel; it is not timed where one of its checks is red.
        name: What is compared, unique within the variant.
        run: Computes on a device and says what is wrong; empty where nothing is.
        needs: Number types of `autoprec.kernels.families` that the device must multiply natively.
    """

    variant: str
    name: str
    run: Callable[[torch.device], str]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Work:
    """What is timed, prepared on a device.

    Attributes:
        ours: Runs the kernel.
        rivals: Name → the same work done by torch. One that cannot run is reported with its reason.
        flops: Multiplications and additions.
        moved: Bytes that must be read and written, each once.
    """

    ours: Call
    rivals: Mapping[str, Call]
    flops: float
    moved: float


@dataclass(frozen=True)
class Goal:
    """The share that the project wants to reach.

    Attributes:
        share: Of what `of` reaches, 1 being equal.
        of: A rival's name, or `BANDWIDTH`.
    """

    share: float
    of: str


@dataclass(frozen=True)
class Timing:
    """One shape of one variant.

    Attributes:
        variant: As of the checks.
        shape: Size by name, such as rows, inputs, outputs.
        where: The model and layer that has this shape.
        operand: Which measured ceiling of operations bounds it: `bf16`, `fp8` or `int8`; empty for none.
        prepare: Allocates everything; nothing is held before.
        goal: What is to be reached, or `None`.
        needs: As of the checks.
    """

    variant: str
    shape: Mapping[str, int]
    where: str
    operand: str
    prepare: Callable[[torch.device], Work]
    goal: Goal | None = None
    needs: tuple[str, ...] = ()


def normal(device: torch.device, *shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return random numbers of a normal distribution: zeros would draw less power and run faster."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=dtype)


def bytes_of(*tensors: Tensor) -> int:
    """Return the bytes of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def compiled(function: Call) -> Call:
    """Return a function compiled by `torch.compile` for the very shapes it uses."""
    torch._dynamo.reset()  # it compiles a function for 8 shapes at most, else runs it as it is
    made: Call = torch.compile(function, dynamic=False, fullgraph=True)
    return made
