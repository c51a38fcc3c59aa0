"""Places beyond 2^31 elements: rows so far apart that 32 bits do not reach the last one.

The memory between the rows is asked for and never touched, so that it costs nothing.
"""

import os
import re
import subprocess
import sys

import pytest
import torch
from comparing import rms_ratio, same

from autoprec.kernels.jit import (
    fused_norm_quantize,
    quantize,
    quantize_int4,
    scaled_mm,
    sparse24,
    weight_only_mm,
)
from autoprec.kernels.ops import quantize as quantize_op
from autoprec.kernels.ops import scaled_mm as scaled_mm_op
from autoprec.kernels.ops import weight_only_mm as weight_only_op
from autoprec.kernels.quantize import int4_group, int8_channel, pack_nibbles

REACH = 2_400_000_000
"""Elements from the first row to the last; from one row to the next is within 32 bits."""


def far_rows(rows):
    """Return a copy of rows (three or more) that are spread over `REACH` elements."""
    apart = REACH // (rows.shape[0] - 1)
    try:
        ground = torch.empty(REACH + rows.shape[1], dtype=rows.dtype, device=rows.device)
    except RuntimeError as error:
        pytest.skip(f"no address space for it: {error}")
    far = ground.as_strided(rows.shape, (apart, 1))
    far.copy_(rows)
    return far


@pytest.mark.parametrize("granularity", ["row", "group", "column"])
def test_quantize(granularity, device):
    rows = torch.randn(3, 130, device=device).bfloat16()
    found = quantize.launch(far_rows(rows), torch.int8, granularity, False, None)
    wanted = quantize_op.reference(rows, torch.int8, granularity, False, None)
    assert all(same(*pair) for pair in zip(found, wanted, strict=True))


def test_scaled_mm(device):
    left = quantize_op.quantize(torch.randn(3, 64, device=device), torch.int8)
    right = quantize_op.quantize(torch.randn(3, 64, device=device), torch.int8)
    options = (None, "none", torch.float32, False)
    found = scaled_mm.launch(far_rows(left.values), left.scale, far_rows(right.values), right.scale, *options)
    wanted = scaled_mm_op.reference(left.values, left.scale, right.values, right.scale, *options)
    assert rms_ratio(found, wanted) < 1e-6


@pytest.mark.parametrize("rows", [weight_only_mm.FEW_ROWS, 6], ids=["by the weighted sum", "by tiles"])
@pytest.mark.parametrize("bits", [8, 4])
def test_weight_only_mm(bits, rows, device):
    inputs = torch.randn(rows, 64, device=device).bfloat16()
    weight = torch.randn(10, 64, device=device)
    if bits == 8:
        made = int8_channel(weight, torch.bfloat16)
        held = (made.values, made.scale, None)
    else:
        group = int4_group(weight)
        held = (pack_nibbles(group.values), group.scale, group.zero)
    found = weight_only_mm.launch(far_rows(inputs), *held, None)
    assert rms_ratio(found, weight_only_op.reference(inputs, *held, None)) < 2**-7


@pytest.mark.parametrize(
    "launch",
    [
        lambda rows: fused_norm_quantize.launch(rows, rows[0], None, torch.int8, "rms", "row", 1e-5),
        quantize_int4.launch,
        sparse24.launch,
    ],
    ids=["fused_norm_quantize", "quantize_int4", "sparse24"],
)
def test_rows_far_apart_are_as_rows_side_by_side(launch, device):
    rows = torch.randn(5, 64, device=device).bfloat16()
    assert all(same(*pair) for pair in zip(launch(far_rows(rows)), launch(rows), strict=True))


def test_flat_tensors_are_addressed_in_64_bits(tmp_path):
    """The number of a program is widened before anything is computed from it."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "autoprec.kernels.jit.compiling", "gradient_compress", "low_bit_adam"]
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    subprocess.run(
        [*command, "--target", "cuda:90", "--json"], env=environment, capture_output=True, check=True
    )
    kernels = [path.read_text() for path in tmp_path.rglob("*.ttir")]
    assert kernels
    for text in kernels:
        (program,) = re.findall(r"(%\w+) = tt\.get_program_id", text)
        uses = [line for line in text.splitlines() if re.search(rf"= .*{program}\b", line)]
        assert uses
        assert all("arith.extsi" in line and "i32 to i64" in line for line in uses), uses
