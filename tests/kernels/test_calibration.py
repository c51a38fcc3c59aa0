import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from autoprec.errors import ConversionError
from autoprec.kernels import reference
from autoprec.kernels.calibration import (
    Calibration,
    Calibrations,
    calibrations_from_data,
    calibrations_to_data,
    decode_smoothing,
    encode_smoothing,
    smoothed,
)


@given(st.lists(st.integers(-127, 127)))
def test_exponents_survive_a_plan(exponents):
    text = encode_smoothing(exponents)
    assert (text is None) == (not exponents)
    assert decode_smoothing(text) == tuple(exponents)


@pytest.mark.parametrize("text", ["a", "====", "AA!A", "ÄÄÄÄ"])
def test_what_is_no_base64_is_refused(text):
    with pytest.raises(ConversionError, match="base64"):
        decode_smoothing(text)


def test_calibrations_survive_the_store():
    known = {
        "a": Calibrations(Calibration(-1.0, 2.0), Calibration(-0.5, 0.5, (3, -4, 0))),
        "b": Calibrations(Calibration(0.0, 1.0)),
    }
    assert calibrations_from_data(calibrations_to_data(known)) == known


def test_each_format_gets_what_it_needs():
    plain, smooth = Calibration(-1.0, 2.0), Calibration(-0.5, 0.5, (3, -4))
    known = Calibrations(plain, smooth)
    assert known.of("int8_static") is plain
    assert known.of("int8_static_smooth") is known.of("int8_dynamic_smooth") is smooth
    assert known.of("int8_dynamic") is known.of("bf16") is None
    assert Calibrations(plain).of("int8_dynamic_smooth") is None


@pytest.mark.parametrize("name", ["int8_dynamic", "int8_static"])
def test_smoothing_loses_less_where_a_channel_sticks_out(name):
    torch.manual_seed(0)
    layer = nn.Linear(64, 32)
    rows = torch.randn(200, 64)
    rows[:, 7] *= 50
    low, high = rows.amin(0), rows.amax(0)
    known = Calibrations(
        Calibration(float(low.min()), float(high.max())), smoothed(low, high, [layer.weight])
    )
    exact = layer(rows).detach()

    def error(chosen):
        return float(
            (
                reference.linear(chosen, rows, layer.weight.detach(), layer.bias.detach(), known.of(chosen))
                - exact
            ).norm()
        )

    assert error(f"{name}_smooth") < 0.5 * error(name)


def test_channels_that_calibration_never_saw_keep_bounded_factors():
    low, high = torch.zeros(8), torch.zeros(8)
    high[0] = 3.0
    found = smoothed(low, high, [torch.zeros(4, 8)])
    assert max(found.smoothing) - min(found.smoothing) <= 4 * 10 * 0.75 + 1
    assert smoothed(torch.zeros(8), torch.zeros(8), [torch.ones(4, 8)]).smoothing == (0,) * 8


def test_modules_that_read_one_input_share_factors_made_for_both():
    low, high = -torch.ones(2), torch.ones(2)
    found = smoothed(low, high, [torch.tensor([[1.0, 1.0]]), torch.tensor([[16.0, 1.0]])])
    assert found == smoothed(low, high, [torch.tensor([[16.0, 1.0]])])
    assert found.smoothing[0] < found.smoothing[1]
