"""The matrix products of two language models, those first that tell most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

ROWS = (1, 1024, 8192, 16, 128)
"""Rows of the activations: one token of decoding, prompts and training, batches of decoding."""


@dataclass(frozen=True)
class Projection:
    """A linear layer of a model.

    Attributes:
        name: Model and layer.
        inputs: Input features.
        outputs: Output features.
    """

    name: str
    inputs: int
    outputs: int


# Llama 3.1 8B: hidden 4096, 32 heads of 128, 8 of keys and values, 14336 in the MLP (its config.json).
# DeepSeek-V3: hidden 7168, 128 heads, latents of 1536 (queries) and 512 + 64 (keys and values), 18432 in the
# dense MLP and 2048 in an expert (Technical Report, section 4.2).
PROJECTIONS = (
    Projection("Llama-8B qkv", 4096, 6144),
    Projection("DeepSeek-V3 o", 16384, 7168),
    Projection("Llama-8B down", 14336, 4096),
    Projection("DeepSeek-V3 expert gate_up", 7168, 4096),
    Projection("Llama-8B gate_up", 4096, 28672),
    Projection("DeepSeek-V3 q_b", 1536, 24576),
    Projection("DeepSeek-V3 expert down", 2048, 7168),
    Projection("Llama-8B o", 4096, 4096),
    Projection("DeepSeek-V3 q_a kv_a", 7168, 2112),
    Projection("DeepSeek-V3 gate_up", 7168, 36864),
    Projection("DeepSeek-V3 down", 18432, 7168),
)


def products() -> Iterator[tuple[int, Projection]]:
    """Return every number of rows with every projection: the first projection at all rows, then the next."""
    for projection in PROJECTIONS:
        for rows in ROWS:
            yield rows, projection


MATRICES = ((8192, 4096), (8192, 7168), (1024, 4096), (128, 7168), (8192, 14336), (1024, 7168), (1, 4096))
"""Activations, rows by features, for operations that are bound by memory."""

# Hidden sizes of Llama 3.1 70B, 8B and 405B (The Llama 3 Herd of Models, table 3) and of DeepSeek-V3.
HIDDEN = (
    ("Llama-70B hidden", 8192, 8192),
    ("Llama-8B hidden", 8192, 4096),
    ("Llama-405B hidden", 8192, 16384),
    ("DeepSeek-V3 hidden", 8192, 7168),
)
"""What norms are taken of: model, rows and columns. The smallest is 64 MiB of bfloat16."""

ELEMENTS = 2**26
"""Of a flat gradient or parameter: 128 MiB of bfloat16."""

WEIGHTS = (
    ("Llama-8B gate_up", 28672, 4096),
    ("DeepSeek-V3 o", 7168, 16384),
    ("DeepSeek-V3 gate_up", 36864, 7168),
)
"""Weights that are converted: model and layer, outputs and inputs. The smallest is 224 MiB of bfloat16."""
