"""Tensors of more than 2^31 elements: what a kernel finds there, and the width of its arithmetic."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from comparing import same

from autoprec.kernels.jit import fused_norm_quantize, quantize, quantize_int4, sparse24

FAR = 2**29 + 16


@pytest.fixture(scope="module")
def far_rows(device):
    """Five rows of bfloat16. Strides fit in 32 bits, the last row's distance does not; little is touched."""
    try:
        memory = torch.empty(4 * FAR + 64, dtype=torch.bfloat16, device=device)
    except RuntimeError:
        pytest.skip("4.3 GB of addresses are not to be had")
    rows = memory.as_strided((5, 64), (FAR, 1))
    rows.copy_(torch.randn(5, 64))
    return rows


@pytest.mark.parametrize(
    "launch",
    [
        lambda rows: quantize.launch(rows, torch.int8, "row", False, None),
        lambda rows: quantize.launch(rows, torch.int8, "group", False, None),
        lambda rows: fused_norm_quantize.launch(rows, rows[0], None, torch.int8, "rms", "row", 1e-5),
        quantize_int4.launch,
        sparse24.launch,
    ],
    ids=["quantize.row", "quantize.group", "fused_norm_quantize", "quantize_int4", "sparse24"],
)
def test_rows_far_apart_are_as_rows_side_by_side(launch, far_rows):
    found, expected = launch(far_rows), launch(far_rows.clone())
    assert all(same(*pair) for pair in zip(found, expected, strict=True))


def test_flat_tensors_are_addressed_in_64_bits(tmp_path):
    """The number of a program is widened before anything is computed from it."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "autoprec.kernels.jit.compiling", "gradient_compress", "low_bit_adam"]
    run = subprocess.run(
        [*command, "--target", "cuda:90", "--json"],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    made = json.loads(run.stdout)
    assert not [item for item in made if item["refused"] or item["spilled"] or not item["wide_loads"]]
    kernels = [path.read_text() for path in tmp_path.rglob("*.ttir")]
    assert len(kernels) == len(made)
    for text in kernels:
        (program,) = re.findall(r"(%\w+) = tt\.get_program_id", text)
        uses = [line for line in text.splitlines() if re.search(rf"= .*{program}\b(?!_)", line)]
        assert uses
        assert all("arith.extsi" in line and "i32 to i64" in line for line in uses), uses
