import pytest
import torch
from torch import nn

from autoprec.api import tune
from autoprec.envs.plans import as_given
from autoprec.errors import PlanError, SettingError, WorkloadError
from autoprec.job import TuningJob
from autoprec.prepare import prepare
from autoprec.progress import Progress
from autoprec.settings import TuneSettings
from autoprec.store.store import Store


class Splits:
    """Half as good on held-out data as in the search."""

    def build_model(self):
        return nn.Sequential(nn.Linear(8, 8))

    def example_inputs(self):
        return torch.ones(1, 8)

    def quality(self, model, split="search"):
        return {"search": -2.0, "final": -1.0}[split]


def goal(**settings):
    with Store.open("sqlite://") as store:
        job = TuningJob(TuneSettings.check(workload="splits", **settings), store, Progress())
        job.prepared = prepare(Splits, "latency")
        return job._goal()


def test_a_limit_given_as_a_share_holds_on_held_out_data_too():
    found, limit = goal(max_quality_drop="1%")
    assert found.max_quality_drop == limit == 0.01 and not found.whole_front
    found, limit = goal()
    assert (found.max_quality_drop, limit, found.whole_front) == (0.01, None, True)
    assert goal(max_quality_drop="0.5")[0].max_quality_drop == 0.5


def test_model_files_that_cannot_be_written_are_told_and_no_half_of_them_stays(tmp_path):
    heard = []

    class Hears(Progress):
        def note(self, message):
            heard.append(message)

    with Store.open("sqlite://") as store:
        job = TuningJob(TuneSettings.check(workload="splits"), store, Hears(), out=tmp_path)
        job.prepared = prepare(Splits, "latency")
        plan = as_given(job.prepared.discovery, job.prepared.context.architecture)
        (tmp_path / "model.onnx").mkdir()
        (tmp_path / "model-2.onnx").write_text("an earlier job's")
        assert job._write_artefacts(plan) == ()
    assert "could not be written: IsADirectoryError" in heard[0] or "PermissionError" in heard[0]
    assert not (tmp_path / "model-2.onnx").exists()


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

    with pytest.raises(WorkloadError, match=r"a model on 'meta'; this version measures on the CPU only"):
        prepare(Elsewhere, "latency")
