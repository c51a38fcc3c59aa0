import math

import pytest
import torch
from comparing import rms_ratio

from autoprec.kernels.jit.launch import INTERPRETED
from autoprec.kernels.jit.scaled_mm import launch
from autoprec.kernels.ops.quantize import Quantized, quantize, spread
from autoprec.kernels.ops.scaled_mm import ACTIVATIONS, reference, scaled_mm

E4, E5, I8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
KINDS = [(I8, I8), (E4, E4), (E5, E4)]
SCALES = [("tensor", "tensor"), ("row", "row"), ("row", "tensor"), ("group", "block"), ("group", "group"),
          ("row", "block")]  # fmt: skip
TRUNCATED = 2**-7
"""The interpreter truncates float32 to bfloat16 where a GPU rounds: one unit, not a half."""


def operands(m, n, k, kinds, scales, device, seed=0):
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(m, k, generator=generator).to(device)
    right = torch.randn(n, k, generator=generator).to(device)
    return quantize(left, kinds[0], scales[0]), quantize(right, kinds[1], scales[1])


def both(left, right, bias=None, activation="none", out=torch.float32, fast=False):
    arguments = (left.values, left.scale, right.values, right.scale, bias, activation, out, fast)
    return launch(*arguments), reference(*arguments)


@pytest.mark.parametrize("scales", SCALES, ids="-".join)
@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (17, 63, 129), (1, 200, 256), (100, 130, 300)], ids=str)
def test_it_is_the_product_of_what_was_quantised(shape, kinds, scales, device):
    left, right = operands(*shape, kinds, scales, device)
    found, wanted = both(left, right)
    # The products are exact in both; sums of k numbers in float32 differ by about sqrt(k) roundings.
    assert rms_ratio(found, wanted) < 2**-24 * math.sqrt(shape[2]) * 4
    assert found.shape == shape[:2]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("out", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_bias_activation_and_output(out, activation, device):
    left, right = operands(9, 20, 64, (E4, E4), ("row", "row"), device)
    bias = torch.randn(20, device=device)
    found, wanted = both(left, right, bias, activation, out)
    assert found.dtype is out
    bound = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: TRUNCATED if INTERPRETED else 2**-8}
    assert rms_ratio(found, wanted) <= bound[out]


def test_fast_sums_are_no_other_numbers_where_sums_are_exact(device):
    left, right = operands(5, 7, 300, (E4, E4), ("row", "row"), device)
    found, wanted = both(left, right, fast=True)
    assert rms_ratio(found, wanted) < (1e-6 if INTERPRETED else 1e-3)


def test_long_rows_of_int8_do_not_overflow(device):
    """127 * 127 * 40 000 is beyond what float32 holds exactly, and within int32."""
    k = 40_000
    ones = torch.full((1, k), 127, dtype=I8, device=device)
    scale = torch.ones(1, 1, device=device)
    found, _ = both(Quantized(ones, scale, scale), Quantized(ones, scale, scale))
    assert found.item() == torch.tensor(127.0 * 127 * k).item()


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_nan_and_inf_stay_in_their_rows(kinds, device):
    left = torch.randn(6, 140, device=device)
    left[1, 3], left[4, 139] = math.nan, math.inf
    right = torch.randn(5, 140, device=device)
    for scales in (("row", "row"), ("group", "block")):
        found, wanted = both(quantize(left, kinds[0], scales[0]), quantize(right, kinds[1], scales[1]))
        # The interpreter reads the NaN of e4m3 as a number; times the scale, inf, it is no finite one still.
        assert torch.equal(found.isfinite(), wanted.isfinite())
        assert found[1].isnan().all()
        assert found[4].isnan().all() or INTERPRETED
        assert found[[0, 2, 3, 5]].isfinite().all()


def test_zero_and_tiny_scales(device):
    left, right = operands(4, 4, 64, (E4, E4), ("row", "row"), device)
    for scale in (0.0, 1e-42, 1e30):
        odd = Quantized(left.values, torch.full_like(left.scale, scale), left.amax)
        found, wanted = both(odd, right)
        # The reference scales before it sums, where subnormal numbers lose their last bits.
        assert torch.allclose(found, wanted, rtol=1e-6, atol=1e-41)


def test_strided_and_empty_operands(device):
    left, right = operands(6, 8, 64, (E4, E4), ("row", "row"), device)
    twisted = Quantized(left.values.t().contiguous().t(), left.scale, left.amax)
    assert torch.equal(both(twisted, right)[0], both(left, right)[0])
    wide = torch.zeros(6, 128, dtype=torch.uint8, device=device).view(E4)
    wide[:, :64] = left.values
    assert torch.equal(both(Quantized(wide[:, :64], left.scale, left.amax), right)[0], both(left, right)[0])
    none = quantize(torch.empty(0, 64, device=device), E4, "row")
    assert both(none, right)[0].shape == (0, 8)
    short = quantize(torch.empty(3, 0, device=device), E4, "row")
    bias = torch.arange(3.0, device=device)
    assert torch.equal(both(short, short, bias)[0], bias.expand(3, 3))


def test_scales_may_be_views(device):
    left, right = operands(6, 8, 300, (E4, E4), ("group", "group"), device)
    turned = Quantized(left.values, left.scale.t().contiguous().t(), left.amax)
    assert torch.equal(both(turned, right)[0], both(left, right)[0])


def test_against_float32_the_error_is_that_of_the_format(device):
    """Rounding to 3 bits is wrong by up to 2^-4 of a number, uniformly: 2^-4/sqrt(3)·0.72 in RMS, twice."""
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(48, 256, generator=generator).to(device) for _ in range(2))
    exact = left @ right.t()
    for scales, kind, bound in ((("row", "row"), E4, 0.045), (("group", "block"), E4, 0.045),
                                (("row", "row"), I8, 0.016)):  # fmt: skip
        found, _ = both(quantize(left, kind, scales[0]), quantize(right, kind, scales[1]))
        assert rms_ratio(found, exact) < bound


def test_the_operator_is_sound_and_compiles_whole():
    left, right = operands(5, 6, 130, (E4, E4), ("group", "block"), "cpu")
    arguments = (
        left.values,
        left.scale,
        right.values,
        right.scale,
        torch.randn(6),
        "gelu",
        torch.bfloat16,
        False,
    )
    # torch cannot compare fp8 inputs, which the check of the schema does: that is done with int8.
    utilities = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.autoprec.scaled_mm.default, arguments, test_utils=utilities)
    whole, other = operands(5, 6, 130, (I8, I8), ("group", "block"), "cpu")
    arguments = (whole.values, whole.scale, other.values, other.scale, None, "none", torch.float32, False)
    torch.library.opcheck(torch.ops.autoprec.scaled_mm.default, arguments)

    def work(rows):
        return scaled_mm(quantize(rows, E4, "group"), right, out_dtype=torch.float32) * 2

    rows = torch.randn(5, 130)
    assert torch.equal(torch.compile(work, fullgraph=True, backend="aot_eager")(rows), work(rows))


def wrong():
    left, right = operands(4, 6, 64, (E4, E4), ("row", "row"), "cpu")
    whole, _ = operands(4, 6, 64, (I8, I8), ("row", "row"), "cpu")
    longer, _ = operands(4, 6, 65, (E4, E4), ("row", "row"), "cpu")
    odd = Quantized(left.values, torch.ones(3, 1), left.amax)
    flat = Quantized(left.values[0], left.scale, left.amax)
    halves = Quantized(left.values, left.scale.half(), left.amax)
    plain = Quantized(left.values.float(), left.scale, left.amax)
    elsewhere = Quantized(left.values.to("meta"), left.scale.to("meta"), left.amax)
    return [
        ((longer, right), {}, "share the length"),
        ((whole, right), {}, "both be int8 or both fp8"),
        ((odd, right), {}, "scales of left 4 × 64"),
        ((flat, right), {}, "two dimensions"),
        ((halves, right), {}, "must be float32"),
        ((plain, right), {}, "left must hold"),
        ((elsewhere, right), {}, "one device"),
        ((left, right, torch.ones(5)), {}, r"bias must be \[6\]"),
        ((left, right), {"activation": "tanh"}, "activation must be"),
        ((left, right), {"out_dtype": torch.float64}, "out_dtype must be"),
    ]


@pytest.mark.parametrize(
    ("arguments", "options", "said"), wrong(), ids=lambda item: item if isinstance(item, str) else ""
)
def test_wrong_arguments_are_named(arguments, options, said):
    with pytest.raises(ValueError, match=said):
        scaled_mm(*arguments, **options)


def test_spread_of_one_row():
    assert spread(torch.tensor([[2.0, 3.0]]), torch.Size((1, 130)))[0, 128] == 3
