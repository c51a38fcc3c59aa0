"""What this very GPU reaches at its best, measured: every share is a share of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from autoprec.errors import one_line
from autoprec.kernels.families import Chip, Family
from benchmarks.kernels.cases import Call, normal
from benchmarks.kernels.timing import Stopwatch

COPY = "copy"
_SIDE = 8192
_OPERANDS = {"bf16": "bfloat16", "fp8": "float8_e4m3fn", "int8": "int8"}


@dataclass(frozen=True)
class Ceiling:
    """A measured best.

    Attributes:
        rate: Bytes or operations a second; `None` where it could not be measured.
        what: What was run.
        rated: What the maker's datasheet says, bytes or operations a second; `None` where not known.
        reason: Why it could not be measured.
    """

    rate: float | None
    what: str
    rated: float | None = None
    reason: str = ""


def measure(device: torch.device, family: Family | None, say: Callable[[str], None]) -> dict[str, Ceiling]:
    """Measure bandwidth by copying, and operations by square products of random numbers."""
    watch = Stopwatch(device)
    chip = family.chip(torch.cuda.get_device_name(device)) if family else None
    free, _ = torch.cuda.mem_get_info(device)
    size = min(2 * 2**30, free // 8)
    work: list[tuple[str, str, float, Callable[[torch.device], Call]]] = [
        (COPY, f"copy of {size / 2**30:.1f} GiB", 2.0 * size, lambda place: _copy(place, size))
    ]
    product = f"product of {_SIDE} x {_SIDE} matrices", 2.0 * _SIDE**3
    work += [("bf16", *product, _bf16), ("fp8", *product, _fp8), ("int8", *product, _int8)]
    found = {}
    for name, what, amount, prepare in work:
        try:
            found[name] = Ceiling(amount / watch.alone(prepare(device)), what, _rated(chip, name))
        except Exception as error:
            found[name] = Ceiling(None, what, _rated(chip, name), one_line(error))
        torch.cuda.empty_cache()
        say(f"ceiling {name:5} {told(name, found[name])}")
    return found


def told(name: str, ceiling: Ceiling) -> str:
    """Return a ceiling for people."""
    unit, scale = ("GB/s", 1e9) if name == COPY else ("TFLOP/s", 1e12)
    if ceiling.rate is None:
        return f"not measured: {ceiling.reason}"
    rated = f", of {ceiling.rated / scale:.0f} rated" if ceiling.rated else ""
    return f"{ceiling.rate / scale:.0f} {unit} by a {ceiling.what}{rated}"


def _rated(chip: Chip | None, name: str) -> float | None:
    if chip is None:
        return None
    if name == COPY:
        return None if chip.memory_gb_per_s is None else chip.memory_gb_per_s * 1e9
    rate = chip.rates.get(_OPERANDS[name])
    return None if rate is None else rate * 1e12


def _copy(device: torch.device, size: int) -> Call:
    source = torch.empty(size, dtype=torch.int8, device=device).random_(-128, 127)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _bf16(device: torch.device) -> Call:
    left, right = normal(device, _SIDE, _SIDE), normal(device, _SIDE, _SIDE, seed=1)
    return lambda: torch.mm(left, right.t())


def _fp8(device: torch.device) -> Call:
    left = normal(device, _SIDE, _SIDE).to(torch.float8_e4m3fn)
    right = normal(device, _SIDE, _SIDE, seed=1).to(torch.float8_e4m3fn)
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(
        left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _int8(device: torch.device) -> Call:
    left = torch.randint(-127, 128, (_SIDE, _SIDE), dtype=torch.int8, device=device)
    right = torch.randint(-127, 128, (_SIDE, _SIDE), dtype=torch.int8, device=device)
    return lambda: torch._int_mm(left, right.t())
