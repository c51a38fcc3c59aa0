import pytest
import torch
from torch import nn

from autoprec.errors import WorkloadError
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


def test_a_model_on_a_device_that_is_not_measured_is_refused():
    class Elsewhere(Splits):
        def build_model(self):
            return super().build_model().to("meta")

    with pytest.raises(WorkloadError, match=r"a model on 'meta'; this version measures on the CPU only"):
        prepare(Elsewhere, "latency")
