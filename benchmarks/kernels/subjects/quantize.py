"""`quantize`: every bit is the reference's; its speed is what memory allows."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch

from autoprec.kernels.ops.quantize import GRANULARITIES, KINDS, quantize, reference, scale_shape
from benchmarks.kernels.cases import BANDWIDTH, Call, Check, Goal, Timing, Work, bytes_of, compiled, normal
from benchmarks.kernels.comparing import differing_bits, spiked
from benchmarks.kernels.shapes import MATRICES

_TIMED = (
    (torch.float8_e4m3fn, "row"),
    (torch.int8, "row"),
    (torch.float8_e4m3fn, "group"),
    (torch.float8_e4m3fn, "block"),
    (torch.float8_e5m2, "row"),
    (torch.float8_e4m3fn, "column"),
    (torch.float8_e4m3fn, "tensor"),
)


def _variant(dtype: torch.dtype, granularity: str) -> str:
    return f"{KINDS[dtype]} {granularity}"


def checks(tiny: bool) -> Iterator[Check]:
    """Return checks of each number type and granularity: odd sizes, extremes, a NaN, long rows."""
    for dtype in KINDS:
        for granularity in GRANULARITIES:
            asked = [("17x63 spiked", (17, 63)), ("17x63 NaN", (17, 63))]
            asked += [("9x130", (9, 130))] if tiny else [("100x130", (100, 130)), ("1024x4096", (1024, 4096))]
            if granularity == "row" and not tiny:
                asked.append(("2x8200", (2, 8200)))  # rows that a program reads twice
            for name, shape in asked:
                run = functools.partial(_compare, dtype, granularity, name, shape)
                yield Check(_variant(dtype, granularity), name, run)


def _compare(
    dtype: torch.dtype, granularity: str, name: str, shape: tuple[int, int], device: torch.device
) -> str:
    from autoprec.kernels.jit.quantize import launch

    # With extremes in it, nearly all of what shares a scale with them is rounded to zero.
    cpu = torch.device("cpu")
    matrix = spiked(shape) if name.endswith("spiked") else normal(cpu, *shape, dtype=torch.float32)
    if name.endswith("NaN"):
        matrix[5, 40] = float("nan")
    # The reference on the CPU: torch on a GPU divides by a number through its reciprocal, a bit less exact.
    expected = reference(matrix, dtype, granularity, False, None)
    found = launch(matrix.to(device), dtype, granularity, False, None)
    for part, one, other in zip(("values", "scale", "amax"), found, expected, strict=True):
        if said := differing_bits(one, other):
            return f"{part}: {said}"
    return ""


def timings() -> Iterator[Timing]:
    """Return the activations of the models, quantised as their products want it."""
    for rows, columns in MATRICES:
        for dtype, granularity in _TIMED:
            large = rows * columns >= 1024 * 4096
            yield Timing(
                _variant(dtype, granularity),
                {"rows": rows, "columns": columns},
                "activations",
                "",
                functools.partial(_prepare, dtype, granularity, rows, columns),
                Goal(0.85, BANDWIDTH) if large else None,
            )


def _prepare(dtype: torch.dtype, granularity: str, rows: int, columns: int, device: torch.device) -> Work:
    matrix = normal(device, rows, columns)
    scales = scale_shape(matrix.shape, granularity)

    def eager() -> object:
        return reference(matrix, dtype, granularity, False, None)

    rivals: dict[str, Call] = {"torch": eager}
    if (rows, columns) == MATRICES[0]:  # compiling takes seconds for each shape
        rivals["torch.compile"] = compiled(eager)
    # With one scale for all, the matrix is read twice.
    reads = 2 if granularity == "tensor" else 1
    return Work(
        lambda: quantize(matrix, dtype, granularity),
        rivals,
        0.0,
        reads * bytes_of(matrix) + matrix.numel() + 8 * scales[0] * scales[1],
    )
