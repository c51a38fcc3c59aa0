import pytest
import torch
import torch.nn.functional as F
from comparing import rms_ratio, same, spiked

from autoprec.kernels.jit.fused_norm_quantize import launch
from autoprec.kernels.ops.fused_norm_quantize import fused_norm_quantize, reference
from autoprec.kernels.ops.quantize import KINDS, Quantized

SHAPES = [(1, 1), (1, 129), (17, 63), (3, 8200)]


def weights(columns, device):
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(2, columns, generator=generator) + torch.tensor([[1.0], [0.0]])).to(device).unbind()


def close(found, expected):
    """Sums in another order differ in the last bits, so a few numbers round to the neighbour."""
    assert torch.allclose(found[1], expected[1], rtol=3e-6, atol=0, equal_nan=True)
    assert torch.allclose(found[2], expected[2], rtol=3e-6, atol=1e-37, equal_nan=True)
    codes = [item[0].view(torch.int8).int() for item in (found, expected)]
    # Minus zero and zero are codes far apart.
    codes = [torch.where(code == -128, 0, code) if item[0].dtype is not torch.int8 else code
             for code, item in zip(codes, (found, expected), strict=True)]  # fmt: skip
    different = codes[0] != codes[1]
    assert int((codes[0] - codes[1]).abs().max()) <= 1
    assert int(different.sum()) <= 1 + different.numel() // 200


@pytest.mark.parametrize("granularity", ["row", "group"])
@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_reference_but_for_the_order_of_sums(shape, norm, granularity, device):
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)
    weight, bias = weights(shape[1], device)
    for kind in (torch.int8, torch.float8_e4m3fn) if shape[1] < 200 else (torch.int8,):
        arguments = (inputs, weight, bias if norm == "layer" else None, kind, norm, granularity, 1e-5)
        close(launch(*arguments), reference(*arguments))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_it_is_torchs_norm_within_the_steps_of_the_type(norm, dtype, device):
    """RMS error of int8 by rows is 1/127 of about 3 standard deviations over the root of 12: below 1%."""
    inputs = (torch.randn(9, 100, device=device) * 5 + 2).to(dtype)
    weight, bias = weights(100, device)
    exact = (
        F.rms_norm(inputs.double(), (100,), weight.double(), 1e-5) + bias.double()
        if norm == "rms"
        else F.layer_norm(inputs.double(), (100,), weight.double(), bias.double(), 1e-5)
    )
    found = Quantized(*launch(inputs, weight, bias, torch.int8, norm, "row", 1e-5))
    assert rms_ratio(found.dequantize(), exact) < 0.01
    assert torch.allclose(found.amax[:, 0].double(), exact.abs().amax(1), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_extremes_zeros_and_nan_of_a_transposed_matrix(kind, device):
    inputs = spiked((12, 6), device=device).t()
    inputs[2], inputs[4, 7], inputs[5, 3] = 0, float("nan"), float("inf")
    weight, _ = weights(12, device)
    for norm in ("rms", "layer"):
        arguments = (inputs, weight, None, kind, norm, "group", 1e-5)
        found = launch(*arguments)
        close(found, reference(*arguments))
        assert found[1][4:].isnan().all()
        assert not found[0][2].float().any()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)], ids=str)
def test_empty(shape, device):
    weight = torch.ones(shape[1], device=device)
    arguments = (torch.empty(shape, device=device), weight, None, torch.int8, "rms", "group", 1e-5)
    assert all(same(*pair) for pair in zip(launch(*arguments), reference(*arguments), strict=True))


def test_the_operator_is_sound_and_takes_more_dimensions():
    inputs, (weight, bias) = torch.randn(2, 3, 130), weights(130, "cpu")
    arguments = (inputs[0], weight, bias, torch.float8_e4m3fn, "layer", "group", 1e-5)
    torch.library.opcheck(torch.ops.autoprec.fused_norm_quantize.default, arguments)
    found = fused_norm_quantize(inputs, weight, torch.int8)
    assert found.values.shape == (6, 130)
    assert found.scale.shape == (6, 1)
    assert fused_norm_quantize(inputs[:, :0], weight, torch.int8).values.shape == (0, 130)


@pytest.mark.parametrize(
    ("inputs", "weight", "options", "said"),
    [
        (torch.zeros(()), torch.ones(1), {}, "inputs must be"),
        (torch.zeros(2, 3), torch.ones(4), {}, r"weight must be \[3\]"),
        (torch.zeros(2, 3), torch.ones(3), {"bias": torch.ones(1, 3)}, r"bias must be \[3\]"),
        (torch.zeros(2, 3).int(), torch.ones(3), {}, "inputs must be float32"),
        (torch.zeros(2, 3), torch.ones(3, device="meta"), {}, "weight must be on cpu"),
        (torch.zeros(2, 3), torch.ones(3), {"dtype": torch.uint8}, "dtype must be one of"),
        (torch.zeros(2, 3), torch.ones(3), {"norm": "batch"}, "norm must be one of"),
        (torch.zeros(2, 3), torch.ones(3), {"granularity": "block"}, "granularity must be one of"),
        (torch.zeros(2, 3), torch.ones(3), {"eps": 0.0}, "eps must be above 0"),
    ],
)
def test_wrong_arguments_are_named(inputs, weight, options, said):
    with pytest.raises(ValueError, match=said):
        fused_norm_quantize(inputs, weight, **{"dtype": torch.int8, **options})
