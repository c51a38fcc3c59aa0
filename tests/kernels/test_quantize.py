import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autoprec.errors import ConversionError
from autoprec.kernels import quantize
from autoprec.kernels.formats import GROUP_SIZE

magnitudes = st.sampled_from([1e-41, 1e-30, 1e-4, 1.0, 1e4, 1e30])
seeds = st.integers(0, 2**31)


def weight(rows, columns, magnitude, seed):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * magnitude


@given(st.integers(1, 20), st.integers(1, 200), magnitudes, seeds)
def test_int8_is_within_half_a_step(rows, columns, magnitude, seed):
    original = weight(rows, columns, magnitude, seed)
    made = quantize.int8_channel(original)
    assert made.values.dtype is torch.int8
    assert made.values.abs().max() <= 127
    step = made.scale[:, None]
    assert bool(((made.dequantize() - original).abs() <= step * 0.5001).all())


@given(st.integers(1, 20), st.integers(1, 200), st.sampled_from([1e-4, 1.0, 1e4]), seeds)
def test_int4_is_within_a_step_and_packs(rows, columns, magnitude, seed):
    original = weight(rows, columns, magnitude, seed)
    made = quantize.int4_group(original)
    assert made.scale.shape == made.zero.shape == (rows, math.ceil(columns / GROUP_SIZE))
    assert 0 <= made.values.min() <= made.values.max() <= 15
    packed = quantize.pack_nibbles(made.values)
    assert packed.shape == (rows, math.ceil(columns / 2))
    assert torch.equal(quantize.unpack_nibbles(packed, columns).int(), made.values)
    # Half a step, and up to 2^-9 of the largest weight by which bfloat16 moves scale and zero.
    step = made.scale.float().repeat_interleave(GROUP_SIZE, 1)[:, :columns]
    slack = original.abs().max() * 2**-7
    assert bool(((made.dequantize() - original).abs() <= step / 2 + slack).all())


@given(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30), st.sampled_from([127, 255]))
def test_affine_parameters_hold_zero_and_the_range(first, second, levels):
    low, high = sorted((first, second))
    scale, zero_point = quantize.affine_parameters(low, high, levels)
    assert scale > 0
    assert 0 <= zero_point <= levels
    ends = torch.tensor([low, 0.0, high], dtype=torch.float32)
    error = (quantize.fake_affine(ends, scale, zero_point, levels) - ends).abs()
    assert error[1] == 0
    assert bool((error <= scale * 1.001).all())


@pytest.mark.parametrize("magnitude", [1e-6, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("shift", [-2.0, 0.0, 0.5, 2.0])
def test_dynamic_scale_is_torchs(magnitude, shift):
    inputs = (torch.randn(50, generator=torch.Generator().manual_seed(1)) + shift) * magnitude
    scale, zero_point = torch._choose_qparams_per_tensor(inputs, False)
    low, high = inputs.min().item(), inputs.max().item()
    ours = quantize.affine_parameters(low, high, 255, quantize.SMALLEST_DYNAMIC_SCALE)
    assert ours == (pytest.approx(scale, rel=1e-6), zero_point)


def test_fp8_saturates_and_keeps_nan():
    one = torch.ones(1)
    values = torch.tensor([1e9, -math.inf, math.nan, 448.0, 17.0])
    seen = quantize.fake_fp8(values, torch.float8_e4m3fn, one)
    torch.testing.assert_close(seen, torch.tensor([448.0, -448.0, math.nan, 448.0, 16.0]), equal_nan=True)
    seen = quantize.fake_fp8(values, torch.float8_e5m2, one)
    torch.testing.assert_close(seen, torch.tensor([57344.0, -57344.0, math.nan, 448.0, 16.0]), equal_nan=True)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (128, 128), (129, 257), (3, 500)])
def test_fp8_blocks_have_a_scale_each(rows, columns):
    matrix = weight(rows, columns, 1.0, 0)
    matrix[:128, :128] *= 1000
    scale = quantize.fp8_block_scale(matrix, 128)
    assert scale.shape == matrix.shape
    for top in range(0, rows, 128):
        for left in range(0, columns, 128):
            block = matrix[top : top + 128, left : left + 128]
            expected = block.abs().max() / 448
            torch.testing.assert_close(
                scale[top : top + 128, left : left + 128], expected.expand(block.shape)
            )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_integers_refuse_what_they_cannot_hold(bad):
    for quantiser in (quantize.int8_channel, quantize.int4_group):
        with pytest.raises(ConversionError, match="NaN or inf"):
            quantiser(torch.tensor([[1.0, bad]]))


def test_fp16_range():
    quantize.require_fp16_range(torch.tensor([65504.0, math.inf, math.nan]))
    with pytest.raises(ConversionError, match="70000"):
        quantize.require_fp16_range(torch.tensor([-70000.0]))
