"""The script that checks and times the kernels on a GPU: what of it a machine without one can prove."""

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from autoprec.device_profile import DeviceProfile
from autoprec.kernels.families import load_families
from autoprec.kernels.formats import FORMATS
from autoprec.kernels.jit.compiling import OPERATIONS
from benchmarks.kernels import layers, report
from benchmarks.kernels.cases import BANDWIDTH, Check, Goal, Timing, Work
from benchmarks.kernels.ceilings import Ceiling
from benchmarks.kernels.checking import may_be_timed, missing, red, run_checks, subject
from benchmarks.kernels.comparing import differing_bits, too_far
from benchmarks.kernels.run import main
from benchmarks.kernels.timing import Pair, Ratio, interval

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "kernels" / "run.py"
CPU = torch.device("cpu")
CEILINGS = {
    "copy": Ceiling(4e12, "copy"),
    "fp8": Ceiling(1.5e15, "product"),
    "bf16": Ceiling(7.5e14, "product"),
    "int8": Ceiling(None, "product", reason="no"),
}
# A box with torch and triton only; numpy is what Triton's interpreter computes with.
BARE = """
    import runpy, sys
    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {absent!r}:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
    sys.meta_path.insert(0, Absent())
    sys.argv = ["run.py", *{arguments!r}]
    runpy.run_path({script!r}, run_name="__main__")
    """
ABSENT = {
    "pydantic", "ray", "sqlalchemy", "alembic", "gymnasium", "optuna", "scipy", "rich", "typer", "sklearn",
    "safetensors", "filelock", "platformdirs", "plotly", "jinja2", "pandas", "psutil", "transformers",
}  # fmt: skip


def run(*arguments, interpreted, absent=None, cwd=ROOT):
    """Run the script as on a machine without a GPU."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRITON_INTERPRET")
    }
    kept |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    kept |= {"TRITON_INTERPRET": "1"} if interpreted else {}
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    if absent:
        code = textwrap.dedent(BARE).format(
            absent=absent, arguments=list(map(str, arguments)), script=str(SCRIPT)
        )
        command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=kept, check=False)


def test_every_check_is_right_in_the_interpreter_with_torch_and_triton_alone(tmp_path):
    done = run("--check-only", "--out", tmp_path / "out", interpreted=True, absent=ABSENT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    found = json.loads((tmp_path / "out" / report.BENCHMARK_FILE).read_text())
    assert found["schema"] == "autoprec.kernel-benchmark/1"
    assert {item["operation"] for item in found["checks"]} == {*OPERATIONS, layers.OPERATION}
    assert {item["state"] for item in found["checks"]} == {"right"}
    assert found["rows"] == [] and found["ceilings"] == {}
    assert not (tmp_path / "out" / report.PROFILE_FILE).exists()


def test_only_some_operations_are_checked_from_any_directory(tmp_path):
    done = run("--check-only", "--only", "weight_only_mm", interpreted=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checked weight_only_mm" in done.stdout
    assert "checked quantize" not in done.stdout
    assert (tmp_path / "kernel-benchmark" / report.BENCHMARK_FILE).exists()


@pytest.mark.parametrize(
    ("interpreted", "arguments", "said"),
    [
        (False, ["--check-only"], "torch finds no GPU here"),
        (True, [], "emulated formats never report a speed"),
    ],
)
def test_without_a_gpu_it_says_so_and_times_nothing(interpreted, arguments, said, tmp_path):
    absent = None if interpreted else ABSENT | {"numpy"}
    done = run(*arguments, "--out", tmp_path / "out", interpreted=interpreted, absent=absent)
    assert done.returncode == 2
    own = [line for line in done.stderr.splitlines() if "numpy" not in line.lower() and "cpu = " not in line]
    assert len(own) == 1 and own[0].startswith(f"run.py: {said}"), done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "conv"], "--only is 'conv'; give one of quantize"),
        (["--minutes", "0"], "--minutes is 0; give a number above zero"),
        (["--minutes", "nan"], "--minutes is nan; give a number above zero"),
    ],
)
def test_options_that_cannot_be_used_are_named(arguments, said, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"run.py: {said}")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_timed_is_checked(operation):
    found = subject(operation)
    assert found is not None, missing(operation).reason
    for tiny in (True, False):
        checks = list(found.checks(tiny))
        assert len({(check.variant, check.name) for check in checks}) == len(checks)
        checked = {check.variant for check in checks}
        timed = {timing.variant for timing in found.timings()}
        used = {variant for layer in layers.LAYERS for name, variant in layer.parts if name == operation}
        assert timed and timed | used <= checked


def test_goals_are_the_projects():
    goals = {
        (operation, timing.variant, timing.goal.of): (timing.goal.share, min(timing.shape["rows"], 1024))
        for operation in ("scaled_mm", "weight_only_mm")
        for timing in subject(operation).timings()
        if timing.goal
    }
    row_wise = "torch._scaled_mm row-wise"
    assert goals == {
        ("scaled_mm", "e4m3 row", row_wise): (0.90, 1024),
        ("scaled_mm", "e4m3 row fast", f"{row_wise}, fast sums"): (0.90, 1024),
        ("scaled_mm", "e4m3 block", row_wise): (0.80, 1024),
        ("weight_only_mm", "int4", BANDWIDTH): (0.75, 1),
    }
    assert {
        (timing.goal.share, timing.goal.of) for timing in subject("quantize").timings() if timing.goal
    } == {(0.85, BANDWIDTH)}


def test_layers_are_of_known_formats_and_each_once():
    names = [layer.format for layer in layers.LAYERS]
    assert len(set(names)) == len(names)
    assert set(names) <= set(FORMATS)
    assert names[0] == layers.BASELINE
    assert layers.needed() <= set(OPERATIONS)


def test_wrong_and_failing_checks_are_red_and_bar_their_variant_only():
    def explode(device):
        raise RuntimeError("out\nof memory")

    lines = []
    checks = [
        Check("e4m3 row", "good", lambda device: ""),
        Check("int8 row", "good", lambda device: ""),
        Check("int8 row", "bad", lambda device: "3 of 4 elements differ"),
        Check("e4m3 block", "raises", explode),
    ]
    verdicts = run_checks("scaled_mm", checks, CPU, lines.append)
    assert [item.state for item in verdicts] == ["right", "right", "wrong", "wrong"]
    assert verdicts[3].reason == "RuntimeError: out of memory"
    assert lines[-1] == "checked scaled_mm: 2 right, 2 wrong"
    wrong = red(verdicts)
    assert wrong == {("scaled_mm", "int8 row"), ("scaled_mm", "e4m3 block")}
    left = {
        item.variant
        for item in subject("scaled_mm").timings()
        if may_be_timed("scaled_mm", item, wrong, None)
    }
    assert left == {"e4m3 row", "e4m3 row fast"}
    assert red([missing("sort")]) == {("sort", "")}


def test_what_a_processor_has_no_instruction_for_is_not_timed():
    family = load_families()["ampere"]
    timed = {
        item.variant
        for item in subject("scaled_mm").timings()
        if may_be_timed("scaled_mm", item, set(), family)
    }
    assert timed == {"int8 row"}


def test_comparisons_see_one_wrong_bit_and_say_where():
    expected = torch.tensor([[1.0, float("nan")], [0.5, 2.0]])
    found = expected.clone()
    assert differing_bits(found, expected) == ""
    found[1, 0] = torch.nextafter(found[1, 0], torch.tensor(1.0))
    assert differing_bits(found, expected).startswith("1 of 4 elements differ, first at [1, 0]: 0.50000005")
    assert "instead of torch.float32" in differing_bits(found.double(), expected)
    assert too_far(torch.full((4,), 1.01), torch.ones(4), 0.02) == ""
    assert (
        too_far(torch.full((4,), 1.03), torch.ones(4), 0.02)
        == "differs by 3.00e-02 of its RMS, more than 2e-02"
    )
    assert too_far(torch.tensor([float("nan"), 1.0]), torch.ones(2), 1.0) == "1 of 2 elements are not finite"


@pytest.mark.parametrize(("count", "cut"), [(6, 0), (8, 0), (9, 1), (12, 2), (20, 5), (25, 7)])
def test_the_interval_is_the_one_of_the_tables(count, cut):
    """Ranks of the 95% interval of a median, as tables of the sign test have them."""
    found = interval([float(number) for number in reversed(range(count))])
    assert (found.low, found.high) == (cut, count - 1 - cut)
    assert found.value == (count - 1) / 2


def test_an_interval_of_few_draws_is_all_of_them():
    assert interval([3.0]) == Ratio(3.0, 3.0, 3.0)
    assert interval([1.0, 2.0, 4.0]) == Ratio(2.0, 1.0, 4.0)


def _timing(goal, operand="fp8"):
    return Timing("e4m3 row", {"rows": 8192, "inputs": 4096, "outputs": 4096}, "a model", operand, None, goal)


def _row(goal, seconds, rival_seconds, work, operand="fp8", rival="theirs"):
    value = rival_seconds / seconds
    pair = Pair(seconds, rival_seconds, Ratio(value, value * 0.9, value * 1.1), 9, True)
    return report.row("scaled_mm", _timing(goal, operand), work, rival, pair, CEILINGS)


def test_a_product_is_told_by_the_ceiling_that_binds():
    work = Work(None, {}, flops=1.2e12, moved=1e8)  # 800 us of arithmetic, 25 us of memory
    row = _row(Goal(0.9, "theirs"), 1e-3, 0.95e-3, work)
    assert (row["rate"], row["unit"]) == (pytest.approx(1200), "TFLOP/s")
    assert row["share"] == pytest.approx(0.8)
    assert row["goal"] == {"share": 0.9, "of": "theirs", "found": pytest.approx(0.95), "reached": True}
    assert row["ratio"]["low"] == pytest.approx(0.95 * 0.9)
    assert "goal" not in _row(Goal(0.9, "theirs"), 1e-3, 1e-3, work, rival="another")
    line = report.told(row)
    assert (
        "1000.0 us" in line and "1200 TFLOP/s =  80%" in line and "0.95x" in line and "reached: 0.95" in line
    )


def test_few_rows_are_told_by_memory():
    work = Work(None, {}, flops=1e9, moved=4e7)  # under a us of arithmetic, 10 us of memory
    row = _row(Goal(0.75, BANDWIDTH), 16e-6, 8e-6, work, operand="bf16")
    assert (row["rate"], row["unit"], row["share"]) == (pytest.approx(2500), "GB/s", pytest.approx(0.625))
    assert row["goal"]["found"] == pytest.approx(0.625)
    assert row["goal"]["reached"] is False
    assert "goal 0.75 of bandwidth MISSED: 0.62" in report.told(row)
    assert report.summary([row], []) == [
        "scaled_mm e4m3 row: 0.75 of bandwidth in 0 of 1 measurements, the lowest 0.62"
    ]


def test_shares_of_what_was_not_measured_are_absent():
    row = _row(None, 1e-3, 1e-3, Work(None, {}, flops=1e12, moved=1e8), operand="int8")
    assert (row["unit"], row["share"]) == ("TFLOP/s", None)
    bare = report.row("quantize", _timing(Goal(0.85, BANDWIDTH), ""), Work(None, {}, 0.0, 1e8), "torch",
                      Pair(1e-4, 2e-4, Ratio(2, 1, 3), 9, False), {})  # fmt: skip
    assert (bare["unit"], bare["share"], bare["goal"]["reached"]) == ("GB/s", None, None)
    assert report.summary([bare], ["quantize e4m3 row: 1x2", "layer: 1x2x3"])[-1].startswith(
        "left out for want of time: 1 of quantize e4m3 row, 1 of layer"
    )
    json.dumps([row, bare], allow_nan=False)


def test_a_device_profile_is_one_that_can_be_imported(tmp_path):
    about = {"name": "NVIDIA H200", "capability": "sm_90", "driver": None, "versions": {"torch": "2.11.0"}}
    shape = {"rows": 1, "inputs": 4096, "outputs": 6144, "seconds": 2e-5}
    told = [
        {"format": "bf16", "implementation": "torch", **shape, "over_bf16": None},
        {
            "format": "fp8_e4m3", "implementation": "triton", **shape,
            "over_bf16": dataclasses.asdict(Ratio(1.2, 1.1, 1.3)),
        },
    ]  # fmt: skip
    made = report.device_profile(about, "2026-01-01T00:00:00+00:00", CEILINGS, told)
    report.write(tmp_path / report.PROFILE_FILE, made)
    assert [item.name for item in tmp_path.iterdir()] == [report.PROFILE_FILE]
    read = DeviceProfile.load(tmp_path / report.PROFILE_FILE)
    assert read.device.name == "NVIDIA H200"
    assert read.formats == ("bf16", "fp8_e4m3")
    assert read.ceilings == {"copy": 4e12, "fp8": 1.5e15, "bf16": 7.5e14}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_times_and_writes_a_profile(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--minutes", "2", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    found = json.loads((tmp_path / report.BENCHMARK_FILE).read_text())
    timed = {item["operation"] for item in found["rows"] if "reason" not in item}
    wrong = {item["operation"] for item in found["checks"] if item["state"] == "wrong"}
    assert timed | wrong >= set(OPERATIONS)
    assert found["ceilings"]["copy"]["rate"] > 0
    if not wrong:
        assert DeviceProfile.load(tmp_path / report.PROFILE_FILE).layers
