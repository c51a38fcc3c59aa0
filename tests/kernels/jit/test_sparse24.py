import pytest
import torch
from comparing import same, spiked

from autoprec.kernels.jit.sparse24 import launch, launch_unpack
from autoprec.kernels.ops.sparse24 import (
    BITS,
    Sparse24,
    reference,
    reference_unpack,
    sparse24_operand,
    sparse24_pack,
    sparse24_unpack,
)

SHAPES = [(1, 4), (17, 64), (3, 100), (129, 12), (2, 4100)]


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_bit_is_the_references(shape, dtype, device):
    weight = spiked(shape, dtype, device=device)
    weight[0, 1], weight[-1, 3] = float("nan"), float("inf")
    # Equal magnitudes of other signs are frequent among small whole numbers.
    weight[:, 2:] = torch.where(weight[:, 2:].abs() > 1, weight[:, 2:], weight[:, 2:].sign())
    found, expected = launch(weight), reference(weight)
    assert all(same(*pair) for pair in zip(found, expected, strict=True))
    assert same(launch_unpack(*found), reference_unpack(*expected))


@pytest.mark.parametrize(
    ("pack", "unpack"),
    [(launch, launch_unpack), (reference, reference_unpack)],
    ids=["triton", "reference"],
)
def test_the_two_largest_stay_and_of_equals_the_earlier(pack, unpack, device):
    fours = torch.tensor(
        [
            [1.0, -3, 2, 0], [0, 0, 0, 0], [1, -1, 1, -1], [0, 5, 5, -5], [1, 2, 2, 3],
            [float("nan"), float("inf"), 9, 8], [3e38, 1e-42, -1e-45, float("-inf")], [0, 0, 0, 1e-45],
        ],
        device=device,
    )  # fmt: skip
    kept = torch.tensor(
        [
            [0, -3, 2, 0], [0, 0, 0, 0], [1, -1, 0, 0], [0, 5, 5, 0], [0, 2, 0, 3],
            [float("nan"), float("inf"), 0, 0], [3e38, 0, 0, float("-inf")], [0, 0, 0, 1e-45],
        ],
        device=device,
    )  # fmt: skip
    for rows, columns in ((8, 4), (2, 16), (1, 12)):
        weight, wanted = (item.view(-1)[: rows * columns].view(rows, columns) for item in (fours, kept))
        assert same(unpack(*pack(weight)), wanted)
    # The places are 1, 2 and 0, 1: the lower half of the first byte is 1 + 4 * 2, the upper 0 + 4 * 1.
    assert int(pack(fours.view(1, 32))[1][0, 0]) == 9 + 16 * 4


def test_every_order_of_four_magnitudes(device):
    """All 256 fours of the magnitudes 0 to 3, against a stable sort."""
    fours = torch.cartesian_prod(*[torch.arange(4.0)] * 4).to(device)
    found = launch_unpack(*launch(fours))
    for four, kept in zip(fours.tolist(), found.tolist(), strict=True):
        places = sorted(range(4), key=lambda place: -four[place])[:2]
        assert kept == [value if place in places else 0 for place, value in enumerate(four)]


def test_a_transposed_weight_is_taken_as_it_lies(device):
    weight = torch.randn(36, 20, device=device).t()
    assert all(same(*pair) for pair in zip(launch(weight), reference(weight), strict=True))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)], ids=str)
def test_empty(shape, device):
    found = launch(torch.empty(shape, device=device))
    assert [tuple(item.shape) for item in found] == [(shape[0], shape[1] // 2), (shape[0], shape[1] // 8)]
    assert launch_unpack(*found).shape == shape


def test_it_takes_nine_sixteenths_of_bf16_and_multiplies():
    weight = torch.randn(16, 64, dtype=torch.bfloat16)
    packed = sparse24_pack(weight)
    assert sum(item.nbytes for item in packed) * 16 == weight.nbytes * 9
    inputs, bias = torch.randn(3, 5, 64, dtype=torch.bfloat16), torch.randn(16, dtype=torch.bfloat16)
    exact = inputs.double() @ sparse24_unpack(packed).double().t() + bias.double()
    found = torch.nn.functional.linear(inputs, sparse24_operand(packed), bias)
    assert torch.allclose(found.double(), exact, rtol=1e-2, atol=5e-2)


def test_the_operators_are_sound():
    weight = torch.randn(3, 20)
    torch.library.opcheck(torch.ops.autoprec.sparse24_pack.default, (weight,))
    torch.library.opcheck(torch.ops.autoprec.sparse24_unpack.default, reference(weight))


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        (torch.zeros(4), "weight must be"),
        (torch.zeros(2, 6), "multiple of 4"),
        (torch.zeros(2, 4).double(), "weight must be float32"),
    ],
)
def test_wrong_weights_are_named(weight, said):
    with pytest.raises(ValueError, match=said):
        sparse24_pack(weight)


def test_wrong_packed_weights_are_named():
    good = sparse24_pack(torch.zeros(2, 16))
    for wrong, said in (
        (Sparse24(good.values[:, :3], good.indices), "values must be"),
        (Sparse24(torch.zeros(8, 2).t(), good.indices), "values must be .* contiguous"),
        (Sparse24(good.values.double(), good.indices), "values must be float32"),
        (Sparse24(good.values, good.indices[:, :1]), r"indices must be uint8 \[2, 2\]"),
        (Sparse24(good.values, good.indices.int()), "indices must be uint8"),
        (Sparse24(good.values, good.indices.to("meta")), "indices must be on cpu"),
    ):
        with pytest.raises(ValueError, match=said):
            sparse24_unpack(wrong)
