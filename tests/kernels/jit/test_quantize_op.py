import pytest
import torch
from comparing import same, spiked

from autoprec.kernels.jit.quantize import launch
from autoprec.kernels.ops.quantize import GRANULARITIES, KINDS, Quantized, quantize, reference, spread

SHAPES = [(1, 1), (1, 129), (17, 63), (100, 130), (2, 8200)]


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_bit_is_the_references(shape, kind, granularity, device):
    matrix = spiked(shape, device=device)
    expected = reference(matrix, kind, granularity, False, None)
    for name, found, wanted in zip(
        Quantized._fields, launch(matrix, kind, granularity, False, None), expected, strict=True
    ):
        assert same(found, wanted), name


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nan_and_inf_of_a_transposed_matrix_are_kept(kind, granularity, device):
    matrix = spiked((40, 33), device=device)
    matrix[4, 5], matrix[7, 8], matrix[9, 9] = float("nan"), float("inf"), -float("inf")
    matrix = matrix.t()
    expected = reference(matrix, kind, granularity, True, None)
    found = launch(matrix, kind, granularity, True, None)
    assert all(same(*pair) for pair in zip(found, expected, strict=True))
    assert found[2].isnan().any()
    assert Quantized(*found).dequantize()[5, 4].isnan()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_quantised_as_their_values(dtype, device):
    matrix = spiked((5, 200), dtype, device=device)
    for granularity in ("row", "group"):
        found = launch(matrix, torch.float8_e4m3fn, granularity, False, None)
        wanted = reference(matrix.float(), torch.float8_e4m3fn, granularity, False, None)
        assert all(same(*pair) for pair in zip(found, wanted, strict=True))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_powers_of_two_saturate_nothing(kind, device):
    matrix = torch.randn(6, 70, device=device) * 3
    values, scale, amax = launch(matrix, kind, "row", True, None)
    mantissa, _ = torch.frexp(scale)
    assert bool((mantissa == 0.5).all())
    limit = 127 if kind is torch.int8 else torch.finfo(kind).max
    assert bool((amax / scale <= limit).all())
    assert bool((amax / scale > limit / 2).all())
    assert bool((values.float().abs().amax(1) > limit / 3).all())


@pytest.mark.parametrize("compute", [launch, reference], ids=["triton", "reference"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_stochastic_rounding_is_unbiased(kind, compute, device):
    """The mean of draws is within 5 standard errors, and each draw is near."""
    matrix = torch.randn(16, 64, device=device)
    draws = torch.stack(
        [Quantized(*compute(matrix, kind, "row", False, seed)).dequantize() for seed in range(40)]
    )
    error = draws.mean((0,)) - matrix
    spread_of_means = draws.std(0) / 40**0.5
    assert abs(float(error.mean())) < 5 * float(spread_of_means.square().mean().sqrt()) / 32
    nearest = Quantized(*reference(matrix, kind, "row", False, None)).dequantize()
    # A number is between its neighbours, one of which is the nearest.
    assert bool(((draws - matrix).abs() <= 3 * (nearest - matrix).abs().max()).all())
    assert float((draws == nearest).double().mean()) < 0.95


def test_a_seed_repeats_and_another_differs(device):
    matrix = torch.randn(8, 64, device=device)
    first, again, other = (launch(matrix, torch.int8, "row", False, seed)[0] for seed in (3, 3, 4))
    assert same(first, again)
    assert not same(first, other)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)], ids=str)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_empty_matrices(shape, granularity, device):
    found = launch(torch.empty(shape, device=device), torch.int8, granularity, False, None)
    wanted = reference(torch.empty(shape, device=device), torch.int8, granularity, False, None)
    assert [tuple(item.shape) for item in found] == [tuple(item.shape) for item in wanted]


def test_the_operator_is_sound():
    matrix = torch.randn(5, 130)
    for arguments in ((torch.int8, "row", False, None), (torch.float8_e4m3fn, "group", True, 3)):
        torch.library.opcheck(torch.ops.autoprec.quantize.default, (matrix, *arguments))


def test_it_compiles_whole_and_exports():
    def work(matrix):
        return quantize(matrix, torch.float8_e4m3fn, "block").dequantize() + 1

    matrix = torch.randn(130, 140)
    compiled = torch.compile(work, fullgraph=True, backend="aot_eager")
    assert same(compiled(matrix), work(matrix))


def test_scales_spread_over_their_regions():
    scale = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    wide = spread(scale, torch.Size((130, 129)))
    assert wide[127, 127] == 1
    assert wide[127, 128] == 2
    assert wide[129, 0] == 3
    assert wide[129, 128] == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((torch.zeros(3), torch.int8), "matrix must be"),
        ((torch.zeros(3, 3).int(), torch.int8), "matrix must be float32"),
        ((torch.zeros(3, 3), torch.uint8), "dtype must be one of"),
        ((torch.zeros(3, 3), torch.int8, "rows"), "granularity must be one of"),
    ],
)
def test_wrong_arguments_are_named(arguments, said):
    with pytest.raises(ValueError, match=said):
        quantize(*arguments)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_each_draw_is_a_neighbour(granularity, device):
    """Of int8, whose neighbours are whole numbers: every draw is less than 1 away, half of them upwards."""
    matrix = torch.randn(150, 140, device=device)
    values, scale, _ = launch(matrix, torch.int8, granularity, False, 7)
    exact = matrix / spread(scale, matrix.shape)
    away = values.float() - exact
    assert float(away.abs().max()) < 1.001
    between = exact.abs() < 126
    assert abs(float(away[between].mean())) < 5 * 0.41 / 140
    assert 0.35 < float((away[between] > 0).float().mean()) < 0.65
