"""What workloads on causal language models share: windows of real text, next-token loss, decoding."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import nn

from autoprec.slices import slice_indices
from autoprec.workload import Split, Workload
from autoprec.workloads.kept import Kept
from autoprec.workloads.packages import device_of

Part = Literal["calibration", "search", "final"]
WINDOW = 256
"""Tokens in a window that quality is judged on; every token but the first is predicted."""
PREFIX = 64
"""Tokens in the cache when one more is decoded."""
REQUESTS = 16
"""Sequences that are decoded together for throughput."""


class LanguageModel(Workload):
    """Decodes one token after 64 with a key-value cache; judged by the loss on held-out text.

    A subclass gives `build_model`, `tokens`, `logits`, `prefill` and `decode`.
    """

    quality_name = "minus the next-token loss (nats per token)"
    windows: ClassVar[dict[Part, int]] = {"calibration": 8, "search": 4, "final": 16}
    """How many windows of each part are used."""

    def __init__(self) -> None:
        self._kept = Kept()

    def tokens(self, part: Part) -> torch.Tensor:
        """Return the token ids of one part of the text, int64[n]; no document is in two parts."""
        raise NotImplementedError

    def logits(self, model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits float[batch, length, vocabulary] of ids int64[batch, length]."""
        raise NotImplementedError

    def prefill(self, model: nn.Module, ids: torch.Tensor) -> Any:
        """Return the cache after ids int64[batch, length]."""
        raise NotImplementedError

    def decode(self, model: nn.Module, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        """Return the logits after one more token, ids int64[batch, 1], and leave the cache as it was."""
        raise NotImplementedError

    def example_inputs(self) -> dict[str, Any]:
        """Return one token to decode, int64[1, 1], and the cache of the 64 before it."""
        return self._step(1)

    def throughput_inputs(self) -> dict[str, Any]:
        """Return the next token of 16 sequences, int64[16, 1], and their cache."""
        return self._step(REQUESTS)

    def calibration(self) -> list[dict[str, Any]]:
        """Return eight windows of text that no quality is judged on, int64[1, 256] each, without a cache."""
        return [{"ids": window} for window in torch.split(self._windows("calibration"), 1)]

    def run(self, model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the logits: of one decoded token where the inputs hold a cache, else of every position."""
        if "cache" in inputs:
            return self.decode(model, inputs["ids"], inputs["cache"])
        return self.logits(model, inputs["ids"])

    def quality(self, model: nn.Module, split: Split = "search", share: float = 1.0) -> float:
        """Return minus the mean next-token cross-entropy, in nats per token, over a share of the windows."""
        return -self._judge(model, split, share)["loss"]

    def metrics(self, model: nn.Module, split: Split = "final") -> dict[str, float]:
        """Return the perplexity per token and the share of tokens whose most likely guess is right."""
        judged = self._judge(model, split)
        return {"perplexity": float(torch.tensor(judged["loss"]).exp()), "top1_accuracy": judged["top1"]}

    def _judge(self, model: nn.Module, split: Split, share: float = 1.0) -> dict[str, float]:
        device, losses, hits = device_of(model), [], []
        windows = self._windows(split)
        with torch.no_grad():
            for window in torch.split(windows[slice_indices(len(windows), share)], 1):
                ids = window.to(device)
                logits, target = self.logits(model, ids)[0, :-1].float(), ids[0, 1:]
                losses.append(torch.nn.functional.cross_entropy(logits, target, reduction="none").double())
                hits.append((logits.argmax(dim=-1) == target).double())
        return {"loss": float(torch.cat(losses).mean()), "top1": float(torch.cat(hits).mean())}

    def _windows(self, part: Part) -> torch.Tensor:
        """Return windows of one part, int64[n, 256]."""
        return self._ids(part)[: self.windows[part] * WINDOW].view(-1, WINDOW)

    def _ids(self, part: Part) -> torch.Tensor:
        ids: torch.Tensor = self._kept.get(("tokens", part), lambda: self.tokens(part))
        return ids

    def _step(self, requests: int) -> dict[str, Any]:
        ids = self._ids("calibration")[: requests * (PREFIX + 1)].view(requests, PREFIX + 1)

        def make_cache() -> Any:
            with torch.no_grad():
                return self.prefill(self.build_model(), ids[:, :PREFIX])

        # The fp32 model makes the cache, so that every candidate decodes from the same state.
        return {"ids": ids[:, PREFIX:], "cache": self._kept.get(("cache", requests), make_cache)}
