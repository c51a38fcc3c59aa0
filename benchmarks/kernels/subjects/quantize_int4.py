"""`quantize_int4`: every bit is the reference's; its speed is what memory allows."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from autoprec.kernels.formats import GROUP_SIZE
from autoprec.kernels.ops.quantize_int4 import reference
from autoprec.kernels.quantize import pack_nibbles
from benchmarks.kernels.cases import Call, Check, Timing, Work, bytes_of, compiled, normal
from benchmarks.kernels.comparing import differing_bits, spiked
from benchmarks.kernels.shapes import WEIGHTS

_FLOATS = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}
_TIMED = ("bf16", "fp32")


def checks(tiny: bool) -> Iterator[Check]:
    """Return checks of each type of weights: odd sizes, extremes, groups of one value."""
    for kind in _FLOATS:
        asked = [("17x63 spiked", (17, 63)), ("40x200", (40, 200)), ("9x130 equal", (9, 130))]
        asked += [] if tiny else [("1024x4096", (1024, 4096))]
        for name, shape in asked:
            yield Check(kind, name, functools.partial(_compare, kind, name, shape))


def _compare(kind: str, name: str, shape: tuple[int, int], device: torch.device) -> str:
    from autoprec.kernels.jit.quantize_int4 import launch

    weight = normal(torch.device("cpu"), *shape, dtype=torch.float32)
    if name.endswith("spiked"):
        weight = spiked(shape)
    elif name.endswith("equal"):
        weight[:] = weight[:, :1]
    limit = torch.finfo(_FLOATS[kind]).max
    weight = weight.clamp(-limit, limit).to(_FLOATS[kind])
    # The reference on the CPU: torch on a GPU divides by a number through its reciprocal, a bit less exact.
    found, expected = launch(weight.to(device)), reference(weight)
    for part, one, other in zip(("packed", "scale", "zero"), found, expected, strict=True):
        if said := differing_bits(one, other):
            return f"{part}: {said}"
    return ""


def timings() -> Iterator[Timing]:
    """Return weights of the models, as they are converted."""
    for where, rows, columns in WEIGHTS:
        for kind in _TIMED:
            run = functools.partial(_prepare, kind, rows, columns)
            yield Timing(kind, {"rows": rows, "columns": columns}, where, "", run)


def _prepare(kind: str, rows: int, columns: int, device: torch.device) -> Work:
    weight = normal(device, rows, columns, dtype=_FLOATS[kind])

    def eager() -> object:
        return _plain(weight)

    rivals: dict[str, Call] = {"torch": eager}
    if (rows, columns) == WEIGHTS[0][1:]:  # compiling takes seconds for each shape
        rivals["torch.compile"] = compiled(eager)
    groups = rows * columns // GROUP_SIZE
    return Work(
        lambda: torch.ops.autoprec.quantize_int4(weight),
        rivals,
        0.0,
        bytes_of(weight) + weight.numel() // 2 + 4 * groups,
    )


def _plain(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the reference does of whole groups, but for asking the GPU whether all is finite.

    The kernel does not ask either, and no graph can be recorded of it.
    """
    groups = weight.float().view(weight.shape[0], -1, GROUP_SIZE)
    low, high = groups.aminmax(dim=2)
    scale = ((high - low) / 15).clamp_min(torch.finfo(torch.float32).tiny).bfloat16()
    zero = (low + 8 * scale.float()).bfloat16()
    values = ((groups - zero.float()[..., None]) / scale.float()[..., None] + 8).round().clamp(0, 15)
    return pack_nibbles(values.to(torch.uint8).view(weight.shape)), scale, zero
