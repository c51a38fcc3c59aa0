"""What the launchers of the Triton kernels share: how kernels run here, and what cases of them are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
import triton
from torch import Tensor

_Rest = ParamSpec("_Rest")
_Result = TypeVar("_Result")

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels run in Triton's interpreter, on CPU tensors; set by `TRITON_INTERPRET=1` at import."""

TILE = 4096
"""Elements that a program of the quantisers holds at once, where what shares a scale has fewer."""
LONGEST_TILE = 8192
"""Elements of a row that one program holds in registers: 64 each of 128 threads."""


@dataclass(frozen=True)
class Case:
    """One specialisation of a kernel, to be compiled ahead of time.

    Attributes:
        name: Unique among all cases, `operation.variant`.
        kernel: The `triton.jit` function.
        signature: Argument to Triton type, `*fp32`, `i32` …; those of `constants` left out.
        constants: Values of the `tl.constexpr` arguments.
        operands: Number types of `autoprec.kernels.families` that the target must compute for the case.
        matrix: Whether matrix instructions must appear.
        warps: Warps a program.
        stages: Depth of software pipelining.
        backend: The only backend that runs the case, `cuda` or `hip`; empty for both.
        unit: Arguments that are 1 here, as strides along contiguous memory are; they become constants.
        odd: Integer arguments that are no multiples of 16; the others, and all addresses, are.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    operands: tuple[str, ...] = ()
    matrix: bool = False
    warps: int = 4
    stages: int = 3
    backend: str = ""
    unit: tuple[str, ...] = ()
    odd: tuple[str, ...] = ("seed",)


def on_its_device(
    launch: Callable[Concatenate[Tensor, _Rest], _Result],
) -> Callable[Concatenate[Tensor, _Rest], _Result]:
    """Make a launcher run with its first tensor's CUDA device as the current one.

    Triton launches on the current device, wherever the tensors are.
    """

    @functools.wraps(launch)
    def switched(first: Tensor, /, *rest: _Rest.args, **named: _Rest.kwargs) -> _Result:
        if not first.is_cuda:
            return launch(first, *rest, **named)
        with torch.cuda.device(first.device):
            return launch(first, *rest, **named)

    return switched


def hardware_fp8(device: torch.device) -> bool:
    """Return whether float32 is rounded to fp8 by an instruction; else kernels do it in integer arithmetic.

    The interpreter's own cast is wrong for ties, overflow and subnormal numbers (Triton 3.7). Triton has no
    fp8 e4m3 type for NVIDIA processors before sm_89.
    """
    if INTERPRETED or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 9)


def power_above(number: int) -> int:
    """Return the least power of two that is not below `number` (1 for 0)."""
    return 1 << max(number - 1, 0).bit_length()


def raw(tensor: Tensor) -> Tensor:
    """View an fp8 tensor as the bytes that a kernel which rounds by itself writes; others as they are."""
    return tensor.view(torch.uint8) if tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2) else tensor
