import pytest

from autoprec.errors import SettingError
from autoprec.kernels.formats import FORMATS, parse_formats


def test_the_vocabulary_only_grows_at_its_end():
    # Policies and landscapes are stored by position.
    assert list(FORMATS)[:14] == [
        "fp32",
        "bf16",
        "fp16",
        "fp16_weight",
        "int8_dynamic",
        "int8_dynamic_row",
        "int8_static",
        "int8_weight_only",
        "int4_weight_only",
        "fp8_e4m3",
        "fp8_e5m2",
        "fp8_block",
        "int8_dynamic_7bit",
        "int8_static_7bit",
    ]


def test_static_and_smooth_formats_are_calibrated():
    calibrated = [name for name, fmt in FORMATS.items() if fmt.calibrated]
    assert calibrated == ["int8_static", "int8_static_7bit", "int8_dynamic_smooth", "int8_static_smooth"]


def test_a_stand_in_names_a_format_of_its_own_granularity():
    for fmt in FORMATS.values():
        if fmt.stands_in_for is not None:
            original = FORMATS[fmt.stands_in_for]
            assert (fmt.weight_scale, fmt.activation_scale) == (
                original.weight_scale,
                original.activation_scale,
            )
            assert original.stands_in_for is None


def test_parse_formats_orders_and_trims():
    assert parse_formats(None) is None
    assert parse_formats(" int8_dynamic, fp32 ,") == ("fp32", "int8_dynamic")
    assert parse_formats(["bf16", "fp32", "bf16"]) == ("fp32", "bf16")


@pytest.mark.parametrize("bad", ["", " , ", []])
def test_parse_formats_refuses_nothing(bad):
    with pytest.raises(SettingError, match="empty"):
        parse_formats(bad)


def test_parse_formats_names_what_it_does_not_know():
    with pytest.raises(SettingError, match=r"int3.*known: fp32"):
        parse_formats("fp32,int3")
