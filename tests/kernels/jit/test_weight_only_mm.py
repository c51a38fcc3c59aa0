import math

import pytest
import torch
from comparing import rms_ratio

from autoprec.kernels.jit.launch import INTERPRETED
from autoprec.kernels.jit.weight_only_mm import FEW_ROWS, launch
from autoprec.kernels.ops.weight_only_mm import reference, weight_only_mm
from autoprec.kernels.quantize import int4_group, int8_channel, pack_nibbles

BOUND = 2**-7 if INTERPRETED else 2**-8
"""One rounding to bfloat16 of the inputs, and perhaps the output; the interpreter truncates."""


def held(bits, n, k, device, seed=0):
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(seed))
    if bits == 8:
        made = int8_channel(weight, torch.bfloat16)
        return [made.values.to(device), made.scale.to(device), None]
    group = int4_group(weight)
    return [pack_nibbles(group.values).to(device), group.scale.to(device), group.zero.to(device)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 70, 2100), (FEW_ROWS, 63, 129), (17, 63, 129), (100, 130, 192)], ids=str
)
def test_it_is_the_product_with_the_weights_held(shape, bits, dtype, device):
    m, n, k = shape
    inputs = torch.randn(m, k, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    bias = torch.randn(n, device=device)
    weight = held(bits, n, k, device)
    found, wanted = launch(inputs, *weight, bias), reference(inputs, *weight, bias)
    assert found.dtype is dtype
    assert rms_ratio(found, wanted) <= BOUND


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [1, 3, 6])
def test_inputs_that_bfloat16_holds_give_float32s_sums(rows, bits, device):
    """Integers enter exactly, and scales and zeros are applied in float32."""
    inputs = torch.randn(rows, 192, device=device).bfloat16().float()
    weight = held(bits, 40, 192, device)
    found, wanted = launch(inputs, *weight, None), reference(inputs, *weight, None)
    assert rms_ratio(found, wanted) < 2e-6


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [2, 9])
def test_nan_and_inf_stay_in_their_rows(rows, bits, device):
    inputs = torch.randn(rows, 96, device=device)
    inputs[1, 5] = math.nan
    inputs[0, 7] = math.inf
    found = launch(inputs, *held(bits, 10, 96, device), None)
    assert found[1].isnan().all()
    assert not found[0].isfinite().any()
    assert found[2:].isfinite().all()


@pytest.mark.parametrize("bits", [8, 4])
def test_strided_empty_and_extreme_inputs(bits, device):
    weight = held(bits, 12, 64, device)
    inputs = torch.randn(6, 64, device=device).bfloat16().float()
    turned = inputs.t().contiguous().t()
    assert torch.equal(launch(turned, *weight, None), launch(inputs, *weight, None))
    assert launch(inputs[:0], *weight, None).shape == (0, 12)
    for size in (1e30, 1e-30):
        scaled = (inputs * size).bfloat16().float()
        assert rms_ratio(launch(scaled, *weight, None), reference(scaled, *weight, None)) < 2e-6


def test_the_operator_is_sound():
    for bits in (8, 4):
        arguments = (torch.randn(3, 130), *held(bits, 6, 130, "cpu"), torch.randn(6))
        torch.library.opcheck(torch.ops.autoprec.weight_only_mm.default, arguments)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({0: torch.zeros(3)}, "inputs must be"),
        ({0: torch.zeros(3, 64).double()}, "inputs must be"),
        ({0: torch.zeros(3, 65)}, r"weight must be \[N, 65\]"),
        ({1: torch.zeros(6, 64)}, "weight must be"),
        ({2: torch.zeros(5)}, r"scale must be \[6\]"),
        ({2: torch.zeros(6).int()}, "scale must be"),
        ({3: torch.zeros(6, 1)}, "weight must be .* of torch.uint8"),
        ({4: torch.zeros(7)}, r"bias must be \[6\]"),
        ({4: torch.zeros(6, device="meta")}, "one device"),
    ],
)
def test_wrong_arguments_are_named(change, said):
    arguments = [torch.zeros(3, 64), *held(8, 6, 64, "cpu"), None]
    for place, value in change.items():
        arguments[place] = value
    with pytest.raises(ValueError, match=said):
        weight_only_mm(*arguments)
