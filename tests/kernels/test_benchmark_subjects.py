"""The subjects that are bound by memory: their timings on small shapes, where a CPU runs what a GPU would."""

import pytest
import torch

pytest.importorskip("triton")

from benchmarks.kernels.cases import BANDWIDTH
from benchmarks.kernels.checking import subject
from benchmarks.kernels.comparing import beyond_neighbours

CPU = torch.device("cpu")
ROWS, COLUMNS = 6, 256
COUNT = ROWS * COLUMNS
SMALL = {"HIDDEN": (("a model", ROWS, COLUMNS),), "WEIGHTS": (("a model", ROWS, COLUMNS),), "ELEMENTS": COUNT}
# Bytes by hand: of each element, and of scales and factors beside them.
MOVED = {
    ("fused_norm_quantize", "e4m3 rms row"): COUNT * (2 + 1) + COLUMNS * 2 + ROWS * 8,
    ("fused_norm_quantize", "int8 rms row"): COUNT * (2 + 1) + COLUMNS * 2 + ROWS * 8,
    ("fused_norm_quantize", "e4m3 rms group"): COUNT * (2 + 1) + COLUMNS * 2 + COUNT // 128 * 8,
    ("fused_norm_quantize", "e4m3 layer row"): COUNT * (2 + 1) + COLUMNS * 4 + ROWS * 8,
    ("gradient_compress", "fp32 compress"): COUNT * (4 + 4 + 4 + 1) + COUNT // 512 * 4,
    ("gradient_compress", "bf16 compress"): COUNT * (2 + 4 + 4 + 1) + COUNT // 512 * 4,
    ("gradient_compress", "fp32 write"): COUNT * (1 + 4) + COUNT // 512 * 4,
    ("gradient_compress", "bf16 write"): COUNT * (1 + 2) + COUNT // 512 * 4,
    ("gradient_compress", "fp32 add"): COUNT * (1 + 4 + 4) + COUNT // 512 * 4,
    ("gradient_compress", "bf16 add"): COUNT * (1 + 2 + 2) + COUNT // 512 * 4,
    ("low_bit_adam", "bf16 8 8 random"): COUNT * (2 + 2 * (2 + 1 + 1)) + COUNT // 256 * 4 * 4,
    ("low_bit_adam", "fp32 8 8 random"): COUNT * (4 + 2 * (4 + 1 + 1)) + COUNT // 256 * 4 * 4,
    ("low_bit_adam", "fp32 16 16"): COUNT * (4 + 2 * (4 + 2 + 2)),
    ("low_bit_adam", "bf16 16 8 random"): COUNT * (2 + 2 * (2 + 2 + 1)) + COUNT // 256 * 2 * 4,
    ("quantize_int4", "bf16"): COUNT * 2 + COUNT // 2 + COUNT // 64 * 4,
    ("quantize_int4", "fp32"): COUNT * 4 + COUNT // 2 + COUNT // 64 * 4,
    ("sparse24", "bf16 pack"): COUNT * (2 + 1) + COUNT // 8,
    ("sparse24", "bf16 unpack"): COUNT * (2 + 1) + COUNT // 8,
    ("sparse24", "fp32 pack"): COUNT * (4 + 2) + COUNT // 8,
    ("sparse24", "fp32 unpack"): COUNT * (4 + 2) + COUNT // 8,
}  # fmt: skip
GOALS = {"fused_norm_quantize", "gradient_compress", "low_bit_adam"}


@pytest.mark.parametrize("operation", sorted({operation for operation, _ in MOVED}))
def test_all_that_is_timed_runs_and_its_bytes_are_exact(operation, monkeypatch):
    found = subject(operation)
    for name in SMALL.keys() & vars(found).keys():
        monkeypatch.setattr(found, name, SMALL[name])

    def traced(function):
        """Trace it whole, as `compiled` does, without waiting for a compiler."""
        torch._dynamo.reset()
        return torch.compile(function, dynamic=False, fullgraph=True, backend="aot_eager")

    monkeypatch.setattr(found, "compiled", traced)
    moved = {}
    for timing in found.timings():
        if "matmul" in timing.variant:  # torch has none on a CPU
            with pytest.raises(NotImplementedError, match="no sparse product"):
                timing.prepare(CPU)
            break
        with torch.no_grad():
            work = timing.prepare(CPU)
            for call in (work.ours, *work.rivals.values()):
                call()
                call()  # those that change what they are given must go on
        assert {"torch", "torch.compile"} <= work.rivals.keys()
        moved[operation, timing.variant] = work.moved
        goal = timing.goal and (timing.goal.share, timing.goal.of)
        assert goal == ((0.85, BANDWIDTH) if operation in GOALS else None)
    assert moved == {name: count for name, count in MOVED.items() if name[0] == operation}


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_neighbours_of_a_type_are_told_from_others(dtype):
    expected = torch.tensor([1.0, -1.0, 0.0, 2.0] * 50).to(dtype)
    assert beyond_neighbours(expected, expected, 0.0) == ""
    beside = expected.clone()
    beside.view(torch.int8)[1] -= 1  # further below zero for int8, nearer to it for the others
    assert beyond_neighbours(beside, expected, 0.0) == ""
    beside.view(torch.int8)[4:7] += 1
    assert "4 of 200 elements are a step off, above 1" in beyond_neighbours(beside, expected, 0.0)
    assert beyond_neighbours(beside, expected, 0.02) == ""
    beside.view(torch.int8)[3] += 2
    assert "1 of 200 elements differ by more than a step" in beyond_neighbours(beside, expected, 1.0)
    if dtype is not torch.int8:
        beside = expected.float()
        beside[2] = -0.0
        assert beyond_neighbours(beside.to(dtype), expected, 0.0) == ""
        beside[2] = float("nan")
        assert "more than a step" in beyond_neighbours(beside.to(dtype), expected, 1.0)
