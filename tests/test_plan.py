import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoprec.errors import PlanError
from autoprec.plan import (
    MAX_PLAN_BYTES,
    Device,
    Evidence,
    Interval,
    ModulePlan,
    Plan,
    Quality,
    UnitPlan,
    plan_schema,
)

names = st.text(min_size=1, max_size=30)
finite = st.floats(allow_nan=False, allow_infinity=False)
intervals = (
    st.lists(finite, min_size=3, max_size=3)
    .map(sorted)
    .map(lambda v: Interval(low=v[0], value=v[1], high=v[2]))
)
devices = st.builds(
    Device, name=names, capability=st.text(max_size=10), runtime=names, threads=st.integers(1, 512),
    versions=st.dictionaries(names, names, max_size=3),
)  # fmt: skip
qualities = st.builds(
    Quality, metric=names, split=st.sampled_from(["search", "final"]), baseline=finite, plan=finite,
    drop=finite, reported=st.dictionaries(names, st.tuples(finite, finite), max_size=3),
)  # fmt: skip
evidences = st.builds(
    Evidence, workload=names, fingerprint=names, weights=names,
    objective=st.sampled_from(["latency", "throughput", "memory"]),
    max_quality_drop=st.none() | finite, baseline_ms=finite, plan_ms=finite, speedup=intervals,
    speedup_over_lossless=st.none() | intervals, baseline_bytes=st.integers(0, 2**60),
    plan_bytes=st.integers(0, 2**60), quality=qualities, shapes=st.lists(names, max_size=3).map(tuple),
    device=devices, searcher=names, measured_runs=st.integers(0, 10**9), pairs=st.integers(1, 10**6),
    measured_at=names,
)  # fmt: skip


@st.composite
def plans(draw):
    paths = draw(st.lists(names, min_size=1, max_size=8, unique=True))
    unit_names = draw(st.lists(names, min_size=1, max_size=len(paths), unique=True))
    owner = [*range(len(unit_names)), *(
        draw(st.integers(0, len(unit_names) - 1)) for _ in paths[len(unit_names):]
    )]  # fmt: skip
    modules = [
        ModulePlan(
            path=path, operation=draw(st.sampled_from(["linear", "conv2d", "embedding"])),
            implementation=draw(names), input_range=draw(st.none() | st.tuples(finite, finite)),
        )
        for path in paths
    ]  # fmt: skip
    units = tuple(
        UnitPlan(
            name=name,
            format=draw(names),
            modules=tuple(m for m, unit in zip(modules, owner, strict=True) if unit == index),
        )
        for index, name in enumerate(unit_names)
    )
    return Plan(
        architecture=draw(names),
        units=units,
        left=draw(st.dictionaries(names, st.text(max_size=10), max_size=3)),
        evidence=draw(st.none() | evidences),
    )


def module(path="a", implementation="aten", **more):
    return ModulePlan(path=path, operation="linear", implementation=implementation, **more)


def plan_data(**more):
    plan = Plan(
        architecture="arch",
        units=(
            UnitPlan(name="a", format="fp32", modules=(module("a"),)),
            UnitPlan(name="b", format="int8_static", modules=(module("b", input_range=(-1.5, 2.0)),)),
        ),
        evidence=Evidence(
            workload="w", fingerprint="f", weights="x", objective="latency", max_quality_drop=0.01,
            baseline_ms=2.0, plan_ms=1.0, speedup=Interval(value=2.0, low=1.9, high=2.1),
            speedup_over_lossless=None, baseline_bytes=10, plan_bytes=5,
            quality=Quality(metric="accuracy", split="final", baseline=0.9, plan=0.89, drop=0.01),
            shapes=("float32[1, 4]",),
            device=Device(name="cpu", capability="AVX2", runtime="eager", threads=2, versions={}),
            searcher="ilp", measured_runs=40, pairs=30, measured_at="2026-01-01T00:00:00+00:00",
        ),
    )  # fmt: skip
    return json.loads(plan.to_json()) | more


def refused(text, *, says):
    with pytest.raises(PlanError) as caught:
        Plan.from_json(text if isinstance(text, str) else json.dumps(text), source="my.json")
    message = str(caught.value)
    assert message.startswith("my.json ") and says in message
    assert "\n" not in message and len(message) < 1000
    return message


@settings(deadline=None)  # the first example pays for imports
@given(plans())
def test_a_plan_reads_back_equal_and_fits_the_published_schema(plan):
    text = plan.to_json()
    assert Plan.from_json(text) == plan
    assert Plan.from_json(text).to_json() == text
    assert Plan.from_json(text).key == plan.key
    jsonschema.validate(json.loads(text), plan_schema(), cls=jsonschema.Draft202012Validator)


@settings(deadline=None)
@given(plans())
def test_the_key_depends_on_what_runs_and_on_nothing_else(plan):
    same = plan.model_copy(update={"units": plan.units[::-1], "evidence": None, "left": {}})
    assert same.key == plan.key
    first = plan.units[0]
    changed = first.model_copy(update={"format": first.format + "x"})
    assert plan.model_copy(update={"units": (changed, *plan.units[1:])}).key != plan.key
    kernel = first.modules[0].model_copy(update={"implementation": first.modules[0].implementation + "x"})
    changed = first.model_copy(update={"modules": (kernel, *first.modules[1:])})
    assert plan.model_copy(update={"units": (changed, *plan.units[1:])}).key != plan.key


def test_the_key_is_the_same_in_another_process(tmp_path):
    path = Plan.from_json(json.dumps(plan_data())).save(tmp_path / "plan.json")
    code = f"from autoprec.plan import Plan; print(Plan.load({str(path)!r}).key)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert found.stdout.strip() == Plan.load(path).key


def test_save_replaces_the_file_in_one_step_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("old")
    plan = Plan.from_json(json.dumps(plan_data()))
    assert plan.save(path) == path
    assert Plan.load(str(path)) == plan
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_saving_where_no_file_can_be_is_refused_and_leaves_nothing_behind(tmp_path):
    plan = Plan.from_json(json.dumps(plan_data()))
    with pytest.raises(PlanError, match=r"cannot write plan .*absent.*No such file"):
        plan.save(tmp_path / "absent" / "plan.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(PlanError, match=r"cannot write plan .*folder"):
        plan.save(tmp_path / "folder")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("keep", [0, 1, 100, -2])
def test_a_truncated_plan_is_refused(keep):
    refused(json.dumps(plan_data(), indent=2)[:keep], says="is not a valid plan: ")


@pytest.mark.parametrize("text", ["plan", "{'schema': 1}", '{"a": 1,}', "\ufeff{}", '{"a": 1} x'])
def test_text_that_is_not_json_is_refused(text):
    refused(text, says="is not a valid plan: ")


@pytest.mark.parametrize("data", [[], 1, None, True])
def test_json_that_is_no_object_is_refused(data):
    refused(data, says="expected a JSON object")


@pytest.mark.parametrize("version", ["autoprec.plan/2", "", None, 1, ["autoprec.plan/1"], "x" * 10**6])
def test_an_unknown_version_is_refused(version):
    refused(plan_data(schema=version), says="this version reads 'autoprec.plan/1'")


def test_a_plan_without_a_version_is_refused():
    data = plan_data()
    del data["schema"]
    refused(data, says="has schema None")
    refused(data | {"schema_version": "autoprec.plan/1"}, says="has schema None")


def test_the_version_is_named_by_its_alias_only():
    refused(plan_data(schema_version="autoprec.plan/1"), says="schema_version")


def test_a_module_or_unit_named_twice_is_refused():
    data = plan_data()
    data["units"][1]["modules"][0]["path"] = "a"
    refused(data, says="module 'a' appears twice")
    data = plan_data()
    data["units"][1]["name"] = "a"
    refused(data, says="unit 'a' appears twice")


def test_a_key_given_twice_is_refused():
    text = json.dumps(plan_data())
    refused(text.replace('"format": "fp32"', '"format": "fp32", "format": "fp16"'), says="key 'format'")
    long = "k" * 10**6
    refused(f'{{"{long}": 1, "{long}": 2}}', says="appears twice")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 400])
def test_figures_that_are_not_finite_are_refused(number):
    text = json.dumps(plan_data())
    assert '"baseline_ms": 2.0' in text and "-1.5" in text
    for changed in (
        text.replace('"baseline_ms": 2.0', f'"baseline_ms": {number}'),
        text.replace("-1.5", number),
    ):
        refused(changed, says="is not a valid plan: ")


def test_figures_of_another_type_are_refused_as_the_schema_refuses_them():
    for place, value in [("measured_runs", "40"), ("pairs", 1.5), ("baseline_ms", "2"), ("plan_bytes", True)]:
        data = plan_data()
        data["evidence"][place] = value
        refused(data, says=f"at evidence.{place}")
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(data, plan_schema(), cls=jsonschema.Draft202012Validator)


def test_an_interval_out_of_order_is_refused():
    data = plan_data()
    data["evidence"]["speedup"] = {"value": 1.0, "low": 1.5, "high": 2.0}
    refused(data, says="low <= value <= high")


@pytest.mark.parametrize("change", [
    {"units": []}, {"units": {}}, {"units": None}, {"architecture": ""}, {"more": 1}, {"left": {"a": 1}},
    {"evidence": {}}, {"units": [{"name": "a", "format": "fp32", "modules": []}]}, {"architecture": "\ud800"},
    {"x\n" * 1000: 1},
])  # fmt: skip
def test_what_the_format_does_not_say_is_refused_with_its_place(change):
    refused(plan_data(**change), says="is not a valid plan: at ")


def test_an_unknown_operation_is_refused():
    data = plan_data()
    data["units"][0]["modules"][0]["operation"] = "softmax"
    assert "units.0.modules.0.operation" in refused(data, says="'linear'")


@pytest.mark.parametrize("text", [
    "[" * 200_000, '{"a":' * 200_000, '{"schema": "autoprec.plan/1", "units": ' + "[" * 900 + "]" * 900 + "}",
])  # fmt: skip
def test_deeply_nested_json_is_refused(text):
    refused(text, says="is not a valid plan: ")


def test_files_that_are_no_plan_are_refused(tmp_path):
    def load(path):
        with pytest.raises(PlanError) as caught:
            Plan.load(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "Is a directory" in load(tmp_path)
    assert "No such file" in load(tmp_path / "absent.json")
    assert "cannot read plan" in load("nul\0byte")
    binary = tmp_path / "binary.json"
    binary.write_bytes(bytes(range(256)))
    assert "cannot read plan" in load(binary)
    sparse = tmp_path / "sparse.json"
    with sparse.open("wb") as file:
        file.truncate(200 * 2**20)
    assert "200 MB" in load(sparse)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="NOT TESTED HERE: no /dev/zero")
def test_a_file_without_end_is_not_read_to_its_end():
    with pytest.raises(PlanError, match=f"more than the {MAX_PLAN_BYTES // 2**20} MB"):
        Plan.load("/dev/zero")


def test_the_published_schema_is_that_of_the_code():
    published = json.loads((Path(__file__).parents[1] / "docs" / "plan.schema.json").read_text())
    assert published == plan_schema(), "write it again: see CONTRIBUTING.md"


def test_plans_cannot_be_changed():
    plan = Plan.from_json(json.dumps(plan_data()))
    with pytest.raises(ValueError, match="frozen"):
        plan.architecture = "other"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"smoothing": "A"}, "smoothing is not base64"),
        ({"smoothing": "AAA!"}, "smoothing is not base64"),
        ({"smoothing": "AQI=", "input_range": None}, "without an input_range"),
        ({"smoothing": 3}, "string"),
    ],
)
def test_smoothing_that_cannot_be_read_is_refused_at_its_place(change, says):
    data = plan_data()
    data["units"][1]["modules"][0] |= change
    assert "units.1.modules.0" in refused(data, says=says)


def test_smoothing_is_part_of_what_a_plan_does():
    data = plan_data()
    plain = Plan.from_json(json.dumps(data))
    data["units"][1]["modules"][0]["smoothing"] = "AQI="
    assert Plan.from_json(json.dumps(data)).key != plain.key
