import pytest
import torch
import triton
import triton.language as tl
from comparing import same, spiked

from autoprec.kernels.jit.rounding import to_bf16


@triton.jit
def round_all(numbers, out, seed, STOCHASTIC: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    random = tl.randint(seed, place).to(tl.uint32, bitcast=True)
    tl.store(out + place, to_bf16(tl.load(numbers + place), random, STOCHASTIC))


def rounded(numbers, seed=None):
    out = torch.empty_like(numbers, dtype=torch.bfloat16)
    round_all[(numbers.numel() // 512,)](numbers, out, seed or 0, STOCHASTIC=seed is not None, BLOCK=512)
    return out


def test_the_nearest_is_that_of_torch_for_every_kind_of_number(device):
    """Numbers of any bits, so NaN of any payload, subnormal numbers and ties are among them."""
    bits = torch.randint(-(2**31), 2**31, (4096,), generator=torch.Generator().manual_seed(0)).int()
    bits[:512] = (bits[:512] & ~0xFFFF) | 0x8000
    bits[512:516] = torch.tensor([0x7FFFFFFF, -1, 0x7F800000, 0x7F800001])
    bits[516:518] = torch.tensor([0x7F7FFFFF, 0x7F7F7FFF])
    numbers = torch.cat([bits.view(torch.float32), spiked((512,))]).to(device)
    assert same(rounded(numbers), numbers.bfloat16())


def test_stochastic_rounding_takes_one_of_two_neighbours_in_the_right_share(device):
    numbers = torch.full((8192,), 1 + 2**-7 * 0.3, device=device)
    found = rounded(numbers, seed=3).float()
    assert found.unique().tolist() == [1, 1 + 2**-7]
    # 5 standard deviations of a share of 0.3 among 8192.
    assert float((found > 1).float().mean()) == pytest.approx(0.3, abs=0.026)
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.5, -2.0, 1e-40]).to(
        device
    )
    special[7] = special[7].bfloat16().float()
    assert same(rounded(special.repeat(64), seed=4), special.bfloat16().repeat(64))
