import pytest
import torch
from torch import nn

from autoprec.api import tune
from autoprec.envs.plans import as_given
from autoprec.errors import PlanError, SettingError, WorkloadError
from autoprec.job import TuningJob
from autoprec.kernels.device import capability, device_name
from autoprec.prepare import measured_device, prepare
from autoprec.progress import Progress
from autoprec.settings import TuneSettings
from autoprec.station import Station
from autoprec.store.store import Store


class Splits:
    """Half as good on held-out data as in the search."""

    def build_model(self):
        return nn.Sequential(nn.Linear(8, 8))

    def example_inputs(self):
        return torch.ones(1, 8)

    def quality(self, model, split="search"):
        return {"search": -2.0, "final": -1.0}[split]


def station(store):
    return Station(prepare(Splits, "latency"), store, "1", lambda *heard: None, lambda note: None)


def goal(**settings):
    with Store.open("sqlite://") as store:
        job = TuningJob(TuneSettings.check(workload="splits", **settings), store, Progress())
        job.station = station(store)
        return job._goal()


def test_a_limit_given_as_a_share_holds_on_held_out_data_too():
    found, limit = goal(max_quality_drop="1%")
    assert found.max_quality_drop == limit == 0.01 and not found.whole_front
    found, limit = goal()
    assert (found.max_quality_drop, limit, found.whole_front) == (0.01, None, True)
    assert goal(max_quality_drop="0.5")[0].max_quality_drop == 0.5


def write_files(plan, folder, heard):
    """Let a job write the files of a plan; `plan` changes the plan of the model as it came."""

    class Hears(Progress):
        def note(self, message):
            heard.append(message)

    with Store.open("sqlite://") as store:
        job = TuningJob(TuneSettings.check(workload="splits"), store, Hears(), out=folder)
        job.station = station(store)
        as_it_came = as_given(job.station.facts.discovery, job.station.facts.context.architecture)
        return job._write_artefacts(plan(as_it_came))


def save_graph(file, facts=(), location=None):
    onnx = pytest.importorskip("onnx")
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [1], [1.0])
    if location is not None:
        weight.ClearField("float_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location)
    graph = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], [weight]))
    for key, value in facts:
        graph.metadata_props.add(key=key, value=value)
    file.write_bytes(graph.SerializeToString())


OURS = [("autoprec.plan", "1234")]


def test_model_files_of_earlier_jobs_go_and_the_users_own_stay(tmp_path):
    heard = []
    save_graph(tmp_path / "model.onnx", OURS, "model.onnx.data")
    save_graph(tmp_path / "model-2.onnx")
    (tmp_path / "model-3.onnx").write_text("not a graph")
    (tmp_path / "model.onnx.data").write_text("weights")
    assert write_files(lambda plan: plan, tmp_path, heard) == () and not heard
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model-2.onnx", "model-3.onnx"]

    save_graph(tmp_path / "model.onnx", OURS)  # does not refer to the data
    (tmp_path / "model.onnx.data").write_text("the user's")
    assert write_files(lambda plan: plan, tmp_path, heard) == () and not heard
    assert (tmp_path / "model.onnx.data").read_text() == "the user's"
    assert not (tmp_path / "model.onnx").exists()


def test_model_files_that_cannot_be_written_are_told(tmp_path):
    heard = []
    (tmp_path / "model.onnx").mkdir()
    of_a_graph = {"runtime": "onnxruntime"}
    assert write_files(lambda plan: plan.model_copy(update=of_a_graph), tmp_path, heard) == ()
    assert "could not be written" in heard[0] and "model.onnx" in heard[0]


@pytest.mark.parametrize("runtime", ["onnxruntime", "all"])
@pytest.mark.parametrize("name", ["model.onnx", "model-2.onnx", "model.onnx.data"])
def test_the_users_own_model_files_are_found_before_the_search(tmp_path, runtime, name):
    pytest.importorskip("onnx")
    (tmp_path / name).write_bytes(b"the user's")
    with pytest.raises(PlanError, match=rf"{name}' is not a job's.*name another directory with out"):
        tune(Splits, budget=1, runtime=runtime, out=tmp_path, store="sqlite://")
    assert (tmp_path / name).read_bytes() == b"the user's"


@pytest.mark.parametrize("name", ["plan.json", "model.onnx", "model-3.onnx", "model.onnx.data"])
def test_a_directory_in_the_place_of_a_result_is_found_before_the_search(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(PlanError, match=r"is a directory, where a file of the results goes"):
        tune(Splits, budget=1, out=tmp_path, store="sqlite://")


@pytest.mark.parametrize(("runtime", "name"), [("eager", "fp8_e4m3"), ("onnxruntime", "int8_weight_only")])
def test_formats_that_no_unit_has_are_refused_before_anything_is_profiled(runtime, name):
    if runtime != "eager":
        pytest.importorskip("onnxscript")
        pytest.importorskip(runtime)
    heard = []

    class Hears(Progress):
        def phase(self, name, detail, share):
            heard.append(detail)

    with pytest.raises(SettingError, match=f"formats asks for {name}, which no unit can run here"):
        tune(Splits, budget=1, runtime=runtime, formats=[name], store="sqlite://", progress=Hears())
    assert not any(heard)


def test_a_model_on_a_device_that_is_not_measured_is_refused():
    class Elsewhere(Splits):
        def build_model(self):
            return super().build_model().to("meta")

    with pytest.raises(WorkloadError, match=r"a model on 'meta'; this version measures on a CPU or one CUDA"):
        prepare(Elsewhere, "latency")

    class Mixed(Splits):
        def build_model(self):
            return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8).to("meta"))

    with pytest.raises(
        WorkloadError, match=r"a model on 'cpu' and 'meta'; a model is measured on one device"
    ):
        prepare(Mixed, "latency")


class InputsElsewhere(Splits):
    def example_inputs(self):
        return {"input": torch.ones(1, 8, device="meta")}


class CalibratedElsewhere(Splits):
    def calibration(self):
        return [torch.ones(1, 8), torch.ones(1, 8, device="meta")]


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        (
            InputsElsewhere,
            r"a tensor of the example inputs \(input\) is on 'meta' and the model on 'cpu': make",
        ),
        (
            CalibratedElsewhere,
            r"a tensor of a batch of calibration\(\) is on 'meta' and the model on 'cpu': make",
        ),
    ],
)
def test_inputs_on_another_device_than_the_model_are_refused(workload, says):
    with pytest.raises(WorkloadError, match=says):
        prepare(workload, "latency")


def test_a_workload_with_a_run_of_its_own_may_move_its_inputs():
    class Moves(InputsElsewhere):
        def run(self, model, inputs):
            return model(torch.ones_like(inputs["input"], device="cpu"))

    assert prepare(Moves, "latency").measurer.device == torch.device("cpu")


def test_what_figures_on_a_cpu_hold_for_names_no_gpu():
    found = measured_device()
    assert found == measured_device(torch.device("cpu"))
    assert (found.name, found.capability) == (device_name(), capability())
    assert set(found.versions) == {"torch", "autoprec"}
