"""`sparse24`: packing and unpacking at what memory allows, and products by torch's sparse instructions."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from autoprec.kernels.ops.sparse24 import (
    BITS,
    reference,
    reference_unpack,
    sparse24_operand,
    sparse24_pack,
    sparse24_unpack,
)
from benchmarks.kernels.cases import Call, Check, Timing, Work, bytes_of, compiled, normal
from benchmarks.kernels.comparing import differing_bits, spiked, too_far
from benchmarks.kernels.shapes import WEIGHTS, products

_TIMED = {"bf16": torch.bfloat16, "fp32": torch.float32}
_FLOATS = _TIMED | {"fp16": torch.float16}
_MATMUL = "bf16 matmul"


def checks(tiny: bool) -> Iterator[Check]:
    """Return checks of each type of weights, packed and unpacked, and of the product."""
    assert set(_FLOATS.values()) == set(BITS)
    for kind in _FLOATS:
        for shape in ((17, 100),) if tiny else ((17, 100), (1024, 4096)):
            for part in ("pack", "unpack"):
                run = functools.partial(_compare, kind, part, shape)
                yield Check(f"{kind} {part}", "x".join(map(str, shape)), run)
    for shape in ((8, 64, 32),) if tiny else ((16, 4096, 6144), (130, 7168, 2112)):
        run = functools.partial(_multiply, shape)
        yield Check(_MATMUL, "x".join(map(str, shape)), run, ("bfloat16",))


def _compare(kind: str, part: str, shape: tuple[int, int], device: torch.device) -> str:
    from autoprec.kernels.jit.sparse24 import launch, launch_unpack

    limit = torch.finfo(_FLOATS[kind]).max
    weight = spiked(shape).clamp(-limit, limit)
    weight[0, 1], weight[-1, 3] = float("nan"), float("inf")
    # Whole numbers are often of equal magnitude, where the order decides.
    weight[4:9] = (weight[4:9].clamp(-3, 3)).round()
    weight = weight.to(_FLOATS[kind])
    # No arithmetic is done, so that nothing is tolerated.
    values, indices = reference(weight)
    if part == "unpack":
        found = launch_unpack(values.to(device), indices.to(device))
        return differing_bits(found, reference_unpack(values, indices))
    for name, one, other in zip(
        ("values", "indices"), launch(weight.to(device)), (values, indices), strict=True
    ):
        if said := differing_bits(one, other):
            return f"{name}: {said}"
    return ""


def _multiply(shape: tuple[int, int, int], device: torch.device) -> str:
    m, k, n = shape
    inputs, weight = normal(device, m, k), normal(device, n, k, seed=1)
    packed = sparse24_pack(weight)
    dense = reference_unpack(*(item.cpu() for item in packed))
    expected = F.linear(inputs.cpu().float(), dense.float())
    # Results are rounded to bfloat16, by 2^-9 at most and by about half of that in the mean.
    return too_far(F.linear(inputs, sparse24_operand(packed)), expected, 4e-3)


def timings() -> Iterator[Timing]:
    """Return weights of the models, packed and unpacked, and their products with activations."""
    for where, rows, columns in WEIGHTS:
        for kind in _TIMED:
            for part in ("pack", "unpack"):
                run = functools.partial(_prepare, kind, part, rows, columns)
                yield Timing(f"{kind} {part}", {"rows": rows, "columns": columns}, where, "", run)
    for rows, projection in products():
        yield Timing(
            _MATMUL,
            {"rows": rows, "inputs": projection.inputs, "outputs": projection.outputs},
            projection.name,
            "bf16",
            functools.partial(_prepare_product, rows, projection.inputs, projection.outputs),
            needs=("bfloat16",),
        )


def _prepare(kind: str, part: str, rows: int, columns: int, device: torch.device) -> Work:
    weight = normal(device, rows, columns, dtype=_TIMED[kind])
    packed = sparse24_pack(weight)

    def pack() -> object:
        return reference(weight)

    def unpack() -> object:
        return reference_unpack(*packed)

    eager = pack if part == "pack" else unpack
    rivals: dict[str, Call] = {"torch": eager}
    if (rows, columns) == WEIGHTS[0][1:]:  # compiling takes seconds for each shape
        rivals["torch.compile"] = compiled(eager)
    return Work(
        (lambda: sparse24_pack(weight)) if part == "pack" else (lambda: sparse24_unpack(packed)),
        rivals,
        0.0,
        bytes_of(weight, *packed),
    )


def _prepare_product(m: int, k: int, n: int, device: torch.device) -> Work:
    inputs, weight = normal(device, m, k), normal(device, n, k, seed=1)
    packed = sparse24_pack(weight)
    operand = sparse24_operand(packed)
    if type(operand) is Tensor:
        raise NotImplementedError("torch has no sparse product for this processor or shape")
    return Work(
        lambda: F.linear(inputs, operand),
        {"bf16 matmul": lambda: F.linear(inputs, weight)},
        1.0 * m * n * k,  # of half the weights, so that 1 is the most that a share can be
        bytes_of(inputs, *packed) + 2 * m * n,
    )
