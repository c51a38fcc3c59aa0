"""`fused_norm_quantize`: the reference but for the order of its sums; its speed is what memory allows."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from autoprec.kernels.ops.fused_norm_quantize import GRANULARITIES, NORMS, fused_norm_quantize, reference
from autoprec.kernels.ops.quantize import KINDS, scale_shape
from benchmarks.kernels.cases import BANDWIDTH, Call, Check, Goal, Timing, Work, bytes_of, compiled, normal
from benchmarks.kernels.comparing import beyond_neighbours
from benchmarks.kernels.shapes import HIDDEN

_TIMED = (
    (torch.float8_e4m3fn, "rms", "row"),
    (torch.int8, "rms", "row"),
    (torch.float8_e4m3fn, "rms", "group"),
    (torch.float8_e4m3fn, "layer", "row"),
)
_EPS = 1e-2
"""Large enough that a check sees it: 1e-5 would change no more than the order of sums does."""
_SUMS = 3e-6
"""Relative: a sum of thousands in another order differs by a few of float32's last bits, 1.2e-7 each."""
_BESIDE = 0.005
"""Share of the elements that such a difference may round to the next number."""


def _variant(dtype: torch.dtype, norm: str, granularity: str) -> str:
    return f"{KINDS[dtype]} {norm} {granularity}"


def checks(tiny: bool) -> Iterator[Check]:
    """Return checks of each number type, norm and granularity: odd sizes, a NaN, rows read more than once."""
    for dtype in KINDS:
        for norm in NORMS:
            for granularity in GRANULARITIES:
                asked = [("17x200", (17, 200)), ("17x200 NaN", (17, 200))]
                asked += [] if tiny else [("1024x4096", (1024, 4096)), ("2x8200", (2, 8200))]
                for name, shape in asked:
                    run = functools.partial(_compare, dtype, norm, granularity, name, shape)
                    yield Check(_variant(dtype, norm, granularity), name, run)


def _compare(
    dtype: torch.dtype, norm: str, granularity: str, name: str, shape: tuple[int, int], device: torch.device
) -> str:
    from autoprec.kernels.jit.fused_norm_quantize import launch

    cpu = torch.device("cpu")
    inputs = normal(cpu, *shape, dtype=torch.float32) * 3 + 1
    if name.endswith("NaN"):
        inputs[5, 40] = float("nan")
    weight, bias = _factors(shape[1], norm, cpu)
    rest = (dtype, norm, granularity, _EPS)
    # The reference on the CPU: torch on a GPU divides by a number through its reciprocal, a bit less exact.
    expected = reference(inputs, weight, bias, *rest)
    on_device = (inputs.to(device), weight.to(device), None if bias is None else bias.to(device))
    found = launch(*on_device, *rest)
    if said := beyond_neighbours(found[0], expected[0], _BESIDE):
        return f"values: {said}"
    for part, one, other in zip(("scale", "amax"), found[1:], expected[1:], strict=True):
        near = torch.isclose(one.cpu(), other, rtol=_SUMS, atol=0, equal_nan=True)
        if not bool(near.all()):
            return f"{part}: {int((~near).sum())} of {near.numel()} differ by more than {_SUMS:.0e}"
    return ""


def _factors(columns: int, norm: str, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias as models have them: RMSNorm has none of the latter."""
    weight = normal(device, columns, seed=1) + 1
    return weight, normal(device, columns, seed=2) if norm == "layer" else None


def timings() -> Iterator[Timing]:
    """Return the norms of the models' hidden states."""
    for where, rows, columns in HIDDEN:
        for dtype, norm, granularity in _TIMED:
            yield Timing(
                _variant(dtype, norm, granularity),
                {"rows": rows, "columns": columns},
                where,
                "",
                functools.partial(_prepare, dtype, norm, granularity, rows, columns),
                Goal(0.85, BANDWIDTH),
            )


def _prepare(
    dtype: torch.dtype, norm: str, granularity: str, rows: int, columns: int, device: torch.device
) -> Work:
    inputs = normal(device, rows, columns)
    weight, bias = _factors(columns, norm, device)
    scales = scale_shape(inputs.shape, granularity)

    def eager() -> object:
        return reference(inputs, weight, bias, dtype, norm, granularity, 1e-5)

    rivals: dict[str, Call] = {"torch": eager}
    if (rows, columns) == HIDDEN[0][1:]:  # compiling takes seconds for each shape
        rivals["torch.compile"] = compiled(eager)
    factors = [item for item in (weight, bias) if item is not None]
    return Work(
        lambda: fused_norm_quantize(inputs, weight, dtype, norm, granularity, bias=bias),
        rivals,
        0.0,
        bytes_of(inputs, *factors) + inputs.numel() + 8 * scales[0] * scales[1],
    )
