import pytest
import torch
from comparing import same, spiked

from autoprec.kernels.jit.gradient_compress import launch, launch_decompress
from autoprec.kernels.ops.gradient_compress import (
    Compressed,
    gradient_compress,
    gradient_decompress,
    reference,
    reference_decompress,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 17, 129, 5000])
def test_every_bit_is_the_references(count, dtype, device):
    gradient = spiked((count,), device=device).clamp(-1e30, 1e30).to(dtype)
    residual = torch.randn(count, device=device)
    mine, theirs = residual.clone(), residual.clone()
    found, expected = launch(gradient, mine), reference(gradient, theirs)
    assert all(same(*pair) for pair in zip((*found, mine), (*expected, theirs), strict=True))
    for out, add in ((torch.float32, True), (torch.bfloat16, True), (dtype, False)):
        sums = [torch.ones(count, dtype=out, device=device) for _ in range(2)]
        launch_decompress(*found, sums[0], add)
        reference_decompress(*found, sums[1], add)
        assert same(*sums)


@pytest.mark.parametrize(
    ("compute", "undo"),
    [(launch, launch_decompress), (reference, reference_decompress)],
    ids=["triton", "reference"],
)
def test_nan_and_inf_spoil_their_block_and_no_residual(compute, undo, device):
    gradient = torch.randn(2000, device=device)
    gradient[3], gradient[600], gradient[1100] = float("nan"), float("inf"), 1e-42
    residual = torch.randn(2000, device=device)
    before = residual.clone()
    values, rounded = torch.zeros_like(gradient), torch.zeros_like(gradient, dtype=torch.bfloat16)
    sent = compute(gradient, residual)
    undo(*sent, values, True)
    undo(*sent, rounded, False)
    assert values[:1024].isnan().all()
    assert rounded[:1024].isnan().all()
    assert same(residual[:1024], before[:1024])
    assert values[1024:].isfinite().all()
    assert torch.allclose((values + residual)[1024:], (gradient + before)[1024:], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("compute", [launch, reference], ids=["triton", "reference"])
def test_what_is_lost_comes_later(compute, device):
    """The sum of what is sent trails the sum of the gradients by the residual alone."""
    gradients = torch.randn(12, 700, device=device) * torch.logspace(-6, 0, 700, device=device)
    residual, sent = torch.zeros(700, device=device), torch.zeros(700, dtype=torch.float64, device=device)
    for gradient in gradients:
        found = Compressed(*compute(gradient, residual))
        sent += gradient_decompress(found).double()
    total = gradients.double().sum(0)
    assert torch.allclose(sent + residual.double(), total, rtol=0, atol=1e-6)
    largest = gradients.abs().max() * 1.2
    assert float((sent - total).abs().max()) < float(largest) / 127


def test_it_sends_a_quarter_of_fp32():
    gradient = torch.randn(512 * 64)
    found = gradient_compress(gradient, torch.zeros_like(gradient))
    assert gradient.nbytes / found.nbytes >= 3.9


@pytest.mark.parametrize("compute", [launch, reference], ids=["triton", "reference"])
def test_empty(compute, device):
    empty = torch.empty(0, device=device)
    found = Compressed(*compute(empty, empty.clone()))
    assert found.nbytes == 0
    assert gradient_decompress(found).shape == (0,)


def test_the_operators_are_sound():
    gradient, residual = torch.randn(700), torch.randn(700)
    torch.library.opcheck(torch.ops.autoprec.gradient_compress.default, (gradient, residual))
    sent = reference(gradient, residual)
    torch.library.opcheck(torch.ops.autoprec.gradient_decompress.default, (*sent, torch.zeros(700), True))


def test_sums_over_ranks_are_in_place():
    total = torch.zeros(600)
    for rank in range(3):
        sent = gradient_compress(torch.full((600,), float(rank)), torch.zeros(600))
        assert gradient_decompress(sent, into=total) is total
    assert torch.allclose(total, torch.full((600,), 3.0))


@pytest.mark.parametrize(
    ("gradient", "residual", "said"),
    [
        (torch.zeros(2, 3), torch.zeros(6), "gradient must be"),
        (torch.zeros(6)[::2], torch.zeros(3), "gradient must be .* contiguous"),
        (torch.zeros(6).half(), torch.zeros(6), "gradient must be float32 or bfloat16"),
        (torch.zeros(6), torch.zeros(5), r"residual must be \[6\]"),
        (torch.zeros(6), torch.zeros(6).bfloat16(), "residual must be float32"),
        (torch.zeros(6), torch.zeros(6, device="meta"), "residual must be on cpu"),
    ],
)
def test_wrong_gradients_are_named(gradient, residual, said):
    with pytest.raises(ValueError, match=said):
        gradient_compress(gradient, residual)


def test_wrong_things_to_decompress_are_named():
    sent = Compressed(torch.zeros(6, dtype=torch.int8), torch.zeros(1))
    for wrong, options, said in (
        (sent._replace(values=torch.zeros(6)), {}, "values must be int8"),
        (sent._replace(scale=torch.zeros(2)), {}, "scale must be"),
        (sent._replace(scale=torch.zeros(1, device="meta")), {}, "scale must be on cpu"),
        (sent, {"dtype": torch.float16}, "dtype must be"),
        (sent, {"into": torch.zeros(7)}, r"into must be \[6\]"),
    ):
        with pytest.raises(ValueError, match=said):
            gradient_decompress(wrong, **options)
