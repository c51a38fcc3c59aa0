"""Odd models, workloads and installations in ONNX Runtime and OpenVINO: right, or refused truly."""

import dataclasses
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

from graph_plans import plan_for  # noqa: E402

from autoprec.api import check  # noqa: E402
from autoprec.envs.graph_profile import profile_graph  # noqa: E402
from autoprec.envs.passes import baseline_shares  # noqa: E402
from autoprec.errors import CandidateError, PlanError, RuntimeRefusedError, WorkloadError  # noqa: E402
from autoprec.kernels.calibration import Calibration, Calibrations  # noqa: E402
from autoprec.prepare import prepare  # noqa: E402
from autoprec.runtimes.available import GRAPH_RUNTIMES  # noqa: E402
from autoprec.runtimes.structure import build, flatten, names  # noqa: E402


def made(model, inputs, **methods):
    base = {"build_model": lambda self: model(), "example_inputs": lambda self: inputs}
    return type("Made", (), base | methods)


def ready(workload, name="onnxruntime"):
    pytest.importorskip(name)
    prepared = prepare(workload, "latency")
    prepared.use_runtime(name)
    return prepared, prepared.graph_runtime(name)


def refusal(workload):
    with pytest.raises(RuntimeRefusedError) as caught:
        ready(workload)[1].prepare()
    return str(caught.value)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


def test_a_runtime_that_gives_another_shape_fails_the_plan():
    """OpenVINO returns [1, 64] for a vector where the last layer is int8_static."""
    pytest.importorskip("openvino")
    prepared, runtime = ready(made(lambda: nn.Sequential(nn.Linear(64, 64)), torch.ones(64)), "openvino")
    assert runtime.prepare() == {}
    seen = {"0": Calibrations(Calibration(-1.0, 1.0))}
    try:
        with prepared.measurer.executable(plan_for(prepared, runtime, {"0": "int8_static"}, seen)) as built:
            assert built.model(torch.ones(64)).shape == (64,)
    except CandidateError as error:
        assert "float32[1, 64], expected float32[64]" in str(error)


@pytest.mark.parametrize("name", sorted(GRAPH_RUNTIMES))
def test_a_layer_that_another_is_folded_into_runs_as_it_came_and_others_are_tuned(name):
    pytest.importorskip(name)

    def net():
        torch.manual_seed(0)
        normed = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        return nn.Sequential(normed, nn.Flatten(), nn.Linear(8 * 36, 64))

    prepared, runtime = ready(made(net, torch.randn(2, 3, 8, 8)), name)
    assert list(runtime.prepare()) == ["0.0"]
    seen = dict.fromkeys(("0.0", "2"), Calibrations(Calibration(-4.0, 4.0)))
    with prepared.measurer.executable(plan_for(prepared, runtime, {"2": "int8_static"}, seen)) as built:
        assert built.applied() == {"0.0": ("fp32", name), "2": ("int8_static", name)}
    folded = plan_for(prepared, runtime, {"0.0": "int8_static"}, seen)
    with (
        pytest.raises(CandidateError, match=r"0\.0 should run int8_static"),
        prepared.measurer.executable(folded),
    ):
        pass


def test_what_the_model_as_it_came_raises_later_is_the_workloads_mistake():
    pytest.importorskip("onnxruntime")
    judged = []

    def quality(self, model):
        judged.append(model)
        if len(judged) > 1:
            raise KeyError("second\ncall")
        return 1.0

    graphs = prepare(made(Two, torch.ones(2, 4), quality=quality), "latency").graphs
    with pytest.raises(WorkloadError, match=r"quality\(model\) raised on the .* came: KeyError.*call"):
        graphs.get("onnxruntime").prepare()
    ran = []

    def run(self, model, inputs):
        ran.append(inputs)
        if len(ran) > 2:
            raise KeyError("third")
        return model(inputs)

    prepared = prepare(made(Two, torch.ones(2, 4), run=run, quality=lambda self, model: 1.0), "latency")
    with pytest.raises(WorkloadError, match="running the example inputs raised on the model as it came"):
        prepared.graphs.get("onnxruntime").prepare()
    with pytest.raises(WorkloadError, match=r"raised, where it had not before: KeyError"):
        baseline_shares(prepared.loaded.run, prepared.measurer.model, ["layer"], [(torch.ones(2, 4), 1.0)])


def test_a_runtime_that_does_not_import_is_named_with_the_reason(tmp_path):
    """In a process of its own, where a broken installation comes first."""
    broken = tmp_path / "openvino"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise OSError('libtbb.so: no such\\nfile')")
    code = (
        "from autoprec.errors import RuntimeRefusedError\n"
        "from autoprec.runtimes.available import graph_runtime_class\n"
        "try: graph_runtime_class('openvino')\n"
        "except RuntimeRefusedError as error: print(error)"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert "openvino is installed and does not import: OSError: libtbb.so: no such file" in done.stdout


def test_a_graph_that_fills_padding_which_the_model_leaves_at_zero_is_refused():
    """Both are right where nothing is padding, but a plan would be another model's."""

    def encoder():
        torch.manual_seed(0)
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1)

    mask = torch.tensor([[False] * 4, [False] * 2 + [True] * 2])
    workload = made(encoder, {"src": torch.randn(2, 4, 16), "src_key_padding_mask": mask})
    prepared, runtime = ready(workload)
    with pytest.raises(
        RuntimeRefusedError, match="before any quantisation its outputs differ from the model's by"
    ):
        profile_graph(prepared.measurer, prepared.discovery, runtime, "architecture", "latency")


class Keyed(Two):
    """Takes and gives dictionaries of which the keys are numbers, or hold the dot that parts names."""

    def forward(self, given):
        seen = given["a"]["b"] - self.layer(given["a.b"])
        return {"seen": {0: True, 1: seen}, "given": given["a"]}


def test_dictionaries_with_any_names_or_numbers_for_keys_go_in_and_out():
    given = {"a.b": torch.ones(2, 4), "a": {"b": torch.zeros(2, 4)}}
    prepared, runtime = ready(made(Keyed, {"given": given}))
    assert runtime.prepare() == {}
    (form,) = runtime.exported.calls.forms
    assert form.inputs == ("given.a.b", "given.a.b.other")
    with prepared.measurer.executable(plan_for(prepared, runtime, {})) as built:
        found, expected = built.model(given=given), prepared.measurer.model(given=given)
    torch.testing.assert_close(found["seen"], expected["seen"])
    assert found["given"] is given["a"]
    structure, tensors = flatten({2: torch.ones(1), "x": {0: torch.zeros(1)}})
    assert names(structure) == ("2", "x.0")
    assert build(structure, tensors)[2] is tensors[0]
    with pytest.raises(RuntimeRefusedError, match="the model returns a, a dict; an exported graph takes and"):
        flatten({"a": {(0, 1): torch.ones(1)}}, what="returns")
    with pytest.raises(RuntimeRefusedError, match="the model is called with a, a dict"):
        flatten({"a": {0: torch.ones(1), "0": torch.ones(1)}})


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    scores: torch.Tensor
    count: int


def test_dataclasses_with_slots_are_put_together_and_what_is_nothing_known_is_named():
    structure, tensors = flatten((Slotted(torch.ones(2), 3), torch.zeros(1)))
    again = build(structure, tensors)
    assert again[0].scores is tensors[0] and again[0].count == 3 and names(structure) == ("0.scores", "1")
    with pytest.raises(RuntimeRefusedError, match=r"^the model returns a set; an exported"):
        flatten({1}, what="returns")


def test_what_the_exporter_writes_wrongly_is_refused_in_one_sentence_and_nothing_else(caplog, capfd):
    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(8, 4)
            self.layer = nn.Linear(4, 4)

        def forward(self, ids):
            return self.layer(self.bag(ids))

    capfd.readouterr()
    caplog.clear()
    try:
        assert ready(made(Bags, torch.arange(6).view(2, 3)))[1].prepare() == {}
    except RuntimeRefusedError as error:
        assert "onnxruntime: " in str(error) and "\n" not in str(error)
    said = [each for each in caplog.records if each.name.startswith(("onnx_ir", "onnxscript"))]
    assert not said and "".join(capfd.readouterr()).strip() == ""


def test_number_types_that_no_array_has_are_refused_by_name():
    class Takes(Two):
        def forward(self, x):
            return self.layer(x.float())

    class Gives(Two):
        def forward(self, x):
            return self.layer(x).bfloat16()

    half = torch.ones(2, 4).bfloat16()
    assert "the model is called with x in bfloat16, which the arrays" in refusal(made(Takes, half))
    assert "the model returns a tensor in bfloat16" in refusal(made(Gives, torch.ones(2, 4)))


def test_huge_outputs_are_compared_and_zeroed_inputs_are_seen_to_change():
    _, runtime = ready(made(Two, torch.full((2, 4), 1e30)))
    assert runtime.prepare() == {}

    class Halves(Two):
        def forward(self, x):
            return self.layer(x.mul_(0.5))

    assert "writes into the tensor x" in refusal(made(Halves, torch.zeros(2, 4)))


def test_an_emptied_model_file_is_no_file_of_another_plan(tmp_path):
    prepared, runtime = ready(made(Two, torch.ones(2, 4)))
    plan_for(prepared, runtime, {}).save(tmp_path / "plan.json")
    (tmp_path / "model.onnx").write_bytes(b"")
    outcome = check(tmp_path / "plan.json", made(Two, torch.ones(2, 4)))
    assert outcome.holds is False and "cannot be read: ValueError: it holds no graph" in outcome.reasons[0]


def test_plans_of_formats_that_no_graph_has_are_refused_by_name():
    workload = made(Two, torch.ones(2, 4))
    prepared, runtime = ready(workload)
    plan = plan_for(prepared, runtime, {})
    unit = plan.units[0]

    def with_unit(**changes):
        return plan.model_copy(update={"units": (unit.model_copy(update=changes),)})

    with pytest.raises(PlanError, match="unit 'layer': unknown format 'int3_magic'; known: fp32"):
        check(with_unit(format="int3_magic"), workload)
    other = (unit.modules[0].model_copy(update={"implementation": "aten"}),)
    with pytest.raises(PlanError, match="the implementation is 'aten', and in a plan for onnxruntime it is"):
        check(with_unit(modules=other), workload)
    outcome = check(with_unit(format="fp8_e4m3"), workload)
    assert "layer: no graph is written in fp8_e4m3; there are fp32, bf16" in outcome.reasons[0]
