"""Device profiles: what is refused and where, what is predicted, and the command that keeps them."""

import json
import math

import pytest
from store_samples import make_device_profile
from typer.testing import CliRunner

from autoprec.cli import app
from autoprec.device_profile import (
    MAX_BYTES,
    DeviceProfile,
    DeviceProfileError,
    predict_seconds,
    slower_than_bf16,
)


def run(*arguments):
    """Run a command in this process; return exit code and output."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def layer(format_name, rows, inputs, outputs, seconds, over=1.0, implementation="triton"):
    ratio = None if format_name == "bf16" else {"value": over, "low": over * 0.9, "high": over * 1.1}
    return {
        "format": format_name, "implementation": implementation, "rows": rows, "inputs": inputs,
        "outputs": outputs, "seconds": seconds, "over_bf16": ratio,
    }  # fmt: skip


def data(*layers):
    return json.loads(make_device_profile().to_json()) | {
        "layers": list(layers or [layer("bf16", 1, 64, 64, 1e-5)])
    }


def profile(*layers):
    return DeviceProfile.from_json(json.dumps(data(*layers)))


def test_a_profile_comes_back_as_it_was_written():
    made = make_device_profile()
    again = DeviceProfile.from_json(made.to_json())
    assert again == made
    assert again.digest == made.digest
    assert profile(layer("bf16", 1, 64, 64, 2e-5)).digest != profile().digest


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(schema="autoprec.device-profile/2"), r"has schema 'autoprec.device-profile/2'"),
        (lambda d: d.pop("schema"), r"has schema None; this version reads 'autoprec.device-profile/1'"),
        (lambda d: d["layers"][1].update(seconds=-1e-5), r"at layers.1.seconds: .*greater than 0"),
        (lambda d: d["layers"][0].update(seconds=0), r"at layers.0.seconds: .*greater than 0"),
        (lambda d: d["layers"][0].update(seconds="1e-5"), r"at layers.0.seconds: .*valid number"),
        (lambda d: d["layers"][0].update(rows=1.5), r"at layers.0.rows"),
        (lambda d: d["layers"][0].update(rows=0), r"at layers.0.rows: .*greater than 0"),
        (lambda d: d["layers"][1]["over_bf16"].update(low=9.0), r"at layers.1.over_bf16: .*low <= value"),
        (lambda d: d["layers"][0].update(colour="red"), r"at layers.0.colour"),
        (lambda d: d["device"].update(name=""), r"at device.name"),
        (lambda d: d["device"].update(name="a\x1b[31mred"), r"at device.name"),
        (lambda d: d["device"].update(name="one\nline"), r"at device.name"),
        (lambda d: d["ceilings"].update(copy=-1.0), r"at ceilings.copy"),
        (lambda d: d.update(layers=[]), r"at layers: .*at least 1"),
        (lambda d: d.update(measured_at="yesterday"), r"at measured_at"),
        (lambda d: d["layers"].append(d["layers"][0]),
         r"layers.2 has the format, implementation and shape of layers.0: bf16 by triton, 1 x 64 x 64"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_its_place(change, said, tmp_path):
    broken = data(layer("bf16", 1, 64, 64, 1e-5), layer("fp8_e4m3", 1, 64, 64, 1e-5))
    change(broken)
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(broken))
    with pytest.raises(DeviceProfileError, match=said) as caught:
        DeviceProfile.load(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a valid device profile: Expecting value"),
        ("[]", r"has schema \[\]"),
        ('{"schema": "autoprec.device-profile/1", "schema": "x"}', "key 'schema' appears twice"),
        ('{"ceilings": {"copy": NaN}}', "NaN is not a finite number"),
        ('{"ceilings": {"copy": 1e999}}', "'1e999' is not a finite number"),
        ("[" * 100_000, "is not a valid device profile"),
    ],
)
def test_what_is_no_profile_is_refused(text, said):
    with pytest.raises(DeviceProfileError, match=said):
        DeviceProfile.from_json(text)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(DeviceProfileError, match=r"cannot read device profile '.*none.json': No such file"):
        DeviceProfile.load(tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(DeviceProfileError, match=r"cannot read device profile '.*binary'"):
        DeviceProfile.load(tmp_path / "binary")
    (tmp_path / "large").write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(DeviceProfileError, match=r"large' has more than the 16 MB"):
        DeviceProfile.load(tmp_path / "large")


GRID = profile(
    *(
        layer("bf16", rows, inputs, outputs, seconds)
        for rows, inputs, outputs, seconds in (
            (1, 1024, 1024, 1e-5), (16, 1024, 1024, 1e-5), (1024, 1024, 1024, 1e-4),
            (1, 4096, 4096, 4e-5), (1024, 4096, 4096, 1.6e-3),
        )
    ),
    layer("fp8_e4m3", 1, 1024, 1024, 2e-5, over=0.5),
    layer("fp8_e4m3", 1024, 1024, 1024, 6e-5, over=1.6),
)  # fmt: skip


def test_measured_shapes_are_predicted_as_measured():
    for item in GRID.layers:
        found = predict_seconds(GRID, item.format, item.rows, item.inputs, item.outputs)
        assert found is not None
        assert (found.seconds, found.measured, found.extrapolated) == (item.seconds, True, False)


def test_between_shapes_logarithms_are_interpolated():
    along_rows = predict_seconds(GRID, "bf16", 128, 1024, 1024)  # half-way from 16 to 1024
    assert along_rows.seconds == pytest.approx(math.sqrt(1e-5 * 1e-4))
    assert (along_rows.measured, along_rows.extrapolated) == (False, False)
    along_weight = predict_seconds(GRID, "bf16", 1024, 2048, 2048)  # half-way from 1024² to 4096²
    assert along_weight.seconds == pytest.approx(math.sqrt(1e-4 * 1.6e-3))
    assert not along_weight.extrapolated


def test_beyond_what_was_measured_it_is_said_and_time_grows_with_the_work():
    more_rows = predict_seconds(GRID, "bf16", 4096, 1024, 1024)
    assert more_rows.seconds == pytest.approx(4e-4)
    assert more_rows.extrapolated
    larger = predict_seconds(GRID, "bf16", 1024, 8192, 4096)
    assert larger.seconds == pytest.approx(3.2e-3)
    assert larger.extrapolated
    smaller = predict_seconds(GRID, "bf16", 1, 64, 64)
    assert smaller.seconds == pytest.approx(1e-5)
    assert smaller.extrapolated


def test_of_weights_of_one_size_the_nearest_proportions_count():
    shapes = profile(layer("bf16", 1, 512, 2048, 1e-5), layer("bf16", 1, 2048, 512, 3e-5))
    assert predict_seconds(shapes, "bf16", 1, 640, 1640).seconds == pytest.approx(1e-5, rel=0.1)
    assert predict_seconds(shapes, "bf16", 1, 1640, 640).seconds == pytest.approx(3e-5, rel=0.1)


def test_the_fastest_implementation_counts():
    two = profile(
        layer("fp8_e4m3", 1, 64, 64, 3e-5, over=0.8),
        layer("fp8_e4m3", 1, 64, 64, 2e-5, over=1.2, implementation="torch"),
    )
    found = predict_seconds(two, "fp8_e4m3", 1, 64, 64)
    assert (found.seconds, found.implementation) == (2e-5, "torch")
    assert slower_than_bf16(two, "fp8_e4m3", 1, 64, 64) is False


def test_a_format_that_was_not_measured_has_no_answer():
    assert predict_seconds(GRID, "int8_dynamic_row", 1, 64, 64) is None
    assert slower_than_bf16(GRID, "int8_dynamic_row", 1, 64, 64) is None


def test_slower_than_bf16_is_told_by_the_nearest_shape():
    assert slower_than_bf16(GRID, "fp8_e4m3", 4, 1024, 2048) is True
    assert slower_than_bf16(GRID, "fp8_e4m3", 300, 1024, 2048) is False
    assert slower_than_bf16(GRID, "bf16", 1, 1024, 1024) is False


def test_sizes_that_are_none_are_refused():
    for ask in (predict_seconds, slower_than_bf16):
        with pytest.raises(ValueError, match="inputs is 0; give a number above zero"):
            ask(GRID, "bf16", 1, 0, 64)


def test_a_profile_is_imported_once_and_listed(tmp_path):
    store, file = tmp_path / "store.db", tmp_path / "device-profile.json"
    file.write_text(GRID.to_json())
    code, out = run("profile", "list", "--store", store)
    assert code == 0
    assert "No device profiles" in out
    code, out = run("profile", "import", file, "--store", store)
    assert code == 0
    assert out.startswith("Profile 1 of NVIDIA H200: 7 layers, 2 formats; in ")
    code, out = run("profile", "import", file, "--store", store)
    assert code == 0
    assert out.startswith("Profile 1 of NVIDIA H200 was there already; in ")
    file.write_text(make_device_profile(name="NVIDIA B200").to_json())
    assert run("profile", "import", file, "--store", store)[1].startswith("Profile 2 of NVIDIA B200")
    code, out = run("profile", "list", "--store", store)
    assert code == 0
    lines = [line for line in out.splitlines() if "NVIDIA" in line]
    assert len(lines) == 2
    assert any("NVIDIA H200 (sm_90)" in line and "bf16, fp8_e4m3" in line for line in lines)


def test_a_bad_file_is_one_line_and_nothing_is_kept(tmp_path):
    file = tmp_path / "bad.json"
    file.write_text("{}")
    with pytest.raises(DeviceProfileError, match=r"bad.json' has schema None") as caught:
        run("profile", "import", file, "--store", tmp_path / "store.db")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "store.db").exists()
