import pytest
import torch
from comparing import rms_ratio, same, spiked

from autoprec.errors import ConversionError
from autoprec.kernels.jit.quantize_int4 import launch
from autoprec.kernels.ops.quantize_int4 import PackedInt4, quantize_int4, reference
from autoprec.kernels.quantize import int4_group, pack_nibbles

SHAPES = [(1, 1), (17, 63), (1, 129), (100, 64), (40, 200)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_bit_is_the_references(shape, dtype, device):
    for weight in (spiked(shape, dtype, device=device), torch.randn(shape, device=device).to(dtype)):
        assert all(same(*pair) for pair in zip(launch(weight), reference(weight.cpu()), strict=True))


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-42, 7.0, -3e38, 1e10, 0.3])
def test_groups_of_one_value(value, device):
    weight = torch.full((3, 70), value, device=device)
    found = launch(weight)
    assert all(same(*pair) for pair in zip(found, reference(weight.cpu()), strict=True))
    # bfloat16 has 8 bits of mantissa.
    assert torch.allclose(PackedInt4(*found).dequantize(70), weight, rtol=2**-8, atol=1e-37)


def test_ties_are_rounded_as_the_reference_does(device):
    """Steps of 1 between -8 and 7 make halves."""
    weight = (torch.arange(256, device=device).view(4, 64) % 31 / 2 - 8).clamp(max=7)
    assert all(same(*pair) for pair in zip(launch(weight), reference(weight.cpu()), strict=True))


def test_a_transposed_weight_is_taken_as_it_lies(device):
    weight = torch.randn(150, 37, device=device).t()
    assert all(same(*pair) for pair in zip(launch(weight), reference(weight.cpu().contiguous()), strict=True))


def test_it_is_that_of_the_weight_only_format():
    weight = torch.randn(5, 129)
    found, wanted = quantize_int4(weight), int4_group(weight)
    assert same(found.packed, pack_nibbles(wanted.values))
    assert same(found.dequantize(129), wanted.dequantize())
    assert rms_ratio(found.dequantize(129), weight) < 0.11


def test_no_channels(device):
    found = launch(torch.empty(0, 70, device=device))
    assert [tuple(item.shape) for item in found] == [(0, 35), (0, 2), (0, 2)]


def test_the_operator_is_sound():
    torch.library.opcheck(torch.ops.autoprec.quantize_int4.default, (torch.randn(3, 129),))


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        (torch.zeros(4), "weight must be"),
        (torch.zeros(4, 0), "1 or more inputs"),
        (torch.zeros(4, 4).double(), "weight must be float32"),
    ],
)
def test_wrong_weights_are_named(weight, said):
    with pytest.raises(ValueError, match=said):
        quantize_int4(weight)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(value):
    with pytest.raises(ConversionError, match="NaN or inf"):
        quantize_int4(torch.tensor([[1.0, value]]))
