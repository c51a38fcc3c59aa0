"""`weight_only_mm` against unpacking by `torch.compile` and the product in bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from autoprec.kernels.ops.weight_only_mm import reference, weight_only_mm
from autoprec.kernels.quantize import int4_group, int8_channel, pack_nibbles, unpack_nibbles
from benchmarks.kernels.cases import BANDWIDTH, Call, Check, Goal, Timing, Work, bytes_of, compiled, normal
from benchmarks.kernels.comparing import too_far
from benchmarks.kernels.shapes import PROJECTIONS, products

VARIANTS = ("int4", "int8")
_NEEDS = ("bfloat16",)
_COMPILED = tuple(projection.inputs for projection in PROJECTIONS[:2])
"""Inputs of the products that `torch.compile` competes in: compiling takes seconds for each shape."""


def packed(variant: str, weight: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return a weight as the operation takes it: values, scale and, for 4 bits, zero points."""
    if variant == "int8":
        eight = int8_channel(weight, torch.bfloat16)
        return eight.values, eight.scale, None
    four = int4_group(weight)
    return pack_nibbles(four.values), four.scale, four.zero


def checks(tiny: bool) -> Iterator[Check]:
    """Return checks for few rows and for many, which different kernels compute."""
    shapes = (
        ((1, 130, 20), (9, 70, 20))
        if tiny
        else ((1, 4096, 6144), (3, 1000, 70), (16, 7168, 2112), (130, 200, 70))
    )
    for variant in VARIANTS:
        for shape in shapes:
            run = functools.partial(_compare, variant, shape)
            yield Check(variant, "x".join(map(str, shape)), run, _NEEDS)


def _compare(variant: str, shape: tuple[int, int, int], device: torch.device) -> str:
    from autoprec.kernels.jit.weight_only_mm import launch

    m, k, n = shape
    cpu = torch.device("cpu")
    inputs, bias = normal(cpu, m, k).float(), normal(cpu, n, seed=2)
    values, scale, zero = packed(variant, normal(cpu, n, k, seed=1))
    expected = reference(inputs, values, scale, zero, bias)
    found = launch(
        inputs.to(device),
        values.to(device),
        scale.to(device),
        None if zero is None else zero.to(device),
        bias.to(device),
    )
    return too_far(found, expected, 1e-4)


def timings() -> Iterator[Timing]:
    """Return every product of the models with weights of both sizes."""
    for rows, projection in products():
        for variant in VARIANTS:
            yield Timing(
                variant,
                {"rows": rows, "inputs": projection.inputs, "outputs": projection.outputs},
                projection.name,
                "bf16",
                functools.partial(_prepare, variant, rows, projection.inputs, projection.outputs),
                Goal(0.75, BANDWIDTH) if rows == 1 and variant == "int4" else None,
                _NEEDS,
            )


def _prepare(variant: str, m: int, k: int, n: int, device: torch.device) -> Work:
    inputs, weight = normal(device, m, k), normal(device, n, k, seed=1)
    values, scale, zero = packed(variant, weight)

    def unpacked() -> Tensor:
        if zero is None:
            whole = values * scale[:, None]
        else:
            groups = unpack_nibbles(values, k).bfloat16().view(n, scale.shape[1], -1) - 8
            whole = (groups * scale[..., None] + zero[..., None]).view(n, k)
        return F.linear(inputs, whole)

    held = [item for item in (values, scale, zero, inputs) if item is not None]
    rivals: dict[str, Call] = {"bf16 matmul": lambda: F.linear(inputs, weight)}
    if m == 1 and k in _COMPILED:
        rivals["torch.compile"] = compiled(unpacked)
    return Work(
        lambda: weight_only_mm(inputs, values, scale, zero),
        rivals,
        2.0 * m * n * k,
        bytes_of(*held) + 2 * m * n,
    )
