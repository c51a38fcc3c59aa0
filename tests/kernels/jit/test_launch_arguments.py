"""What launchers read that is not laid out as it usually is."""

import pytest
import torch
from comparing import rms_ratio

from autoprec.kernels.jit import scaled_mm, weight_only_mm
from autoprec.kernels.ops import scaled_mm as scaled_mm_op
from autoprec.kernels.ops import weight_only_mm as weight_only_op
from autoprec.kernels.ops.gradient_compress import Compressed, gradient_decompress
from autoprec.kernels.ops.low_bit_adam import Moment, low_bit_adam
from autoprec.kernels.ops.quantize import quantize
from autoprec.kernels.quantize import int8_channel

BIASES = {"every second": lambda: torch.randn(24)[::2], "one for all": lambda: torch.randn(1).expand(12)}


@pytest.mark.parametrize("make", BIASES.values(), ids=BIASES)
def test_a_bias_of_any_strides(make, device):
    bias = make().to(device)
    left, right = (quantize(torch.randn(rows, 64, device=device), torch.int8) for rows in (5, 12))
    arguments = (left.values, left.scale, right.values, right.scale, bias, "none", torch.float32, False)
    assert rms_ratio(scaled_mm.launch(*arguments), scaled_mm_op.reference(*arguments)) < 1e-6
    held = int8_channel(torch.randn(12, 64, device=device))
    for rows in (2, 6):
        inputs = torch.randn(rows, 64, device=device).bfloat16().float()
        arguments = (inputs, held.values, held.scale, None, bias)
        assert rms_ratio(weight_only_mm.launch(*arguments), weight_only_op.reference(*arguments)) < 1e-6


@pytest.mark.parametrize("granularity", ["row", "group", "block", "tensor"])
def test_sums_of_nothing(granularity, device):
    left, right = (quantize(torch.empty(rows, 0, device=device), torch.int8, granularity) for rows in (5, 6))
    bias = torch.arange(6.0, device=device)
    arguments = (left.values, left.scale, right.values, right.scale, bias, "relu", torch.float32, False)
    assert torch.equal(scaled_mm.launch(*arguments), bias.expand(5, 6))


def test_scales_that_kernels_would_misread_are_refused(device):
    values = torch.ones(1024, dtype=torch.int8, device=device)
    with pytest.raises(ValueError, match=r"scale must be .* contiguous"):
        gradient_decompress(Compressed(values, torch.arange(4.0, device=device)[::2]))
    parameter = torch.zeros(512, device=device)
    moment = Moment.zeros(parameter, 8)
    apart = Moment(moment.values, torch.ones(4, device=device)[::2])
    with pytest.raises(ValueError, match="scale of first must be contiguous"):
        low_bit_adam(parameter, parameter, apart, moment, step=1)


def test_int8_rows_that_int32_cannot_sum_are_refused():
    long = torch.zeros(1, scaled_mm_op.LONGEST_WHOLE + 1, dtype=torch.int8)
    whole = quantize(long.float(), torch.int8)
    with pytest.raises(ValueError, match="at most 131071 elements"):
        scaled_mm_op.scaled_mm(whole, whole)
    full = torch.full((1, scaled_mm_op.LONGEST_WHOLE), -128, dtype=torch.int8)
    one = torch.ones(1, 1)
    arguments = (full, one, full, one, None, "none", torch.float32, False)
    assert scaled_mm.launch(*arguments).item() == 128.0 * 128 * scaled_mm_op.LONGEST_WHOLE


def test_a_backward_pass_raises():
    inputs = torch.randn(3, 64, requires_grad=True)
    weight = quantize(torch.randn(4, 64), torch.int8)
    with pytest.raises(RuntimeError, match="autoprec::quantize has no gradient"):
        quantize(inputs, torch.int8).scale.sum().backward()
    held = int8_channel(torch.randn(4, 64))
    with pytest.raises(RuntimeError, match="autoprec::weight_only_mm has no gradient"):
        weight_only_op.weight_only_mm(inputs, held.values, held.scale).sum().backward()
    with torch.no_grad():
        assert scaled_mm_op.scaled_mm(quantize(inputs, torch.int8), weight).shape == (3, 4)
