"""How far two tensors are apart."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from autoprec.errors import RuntimeRefusedError

LARGEST_DIFFERENCE = 1e-3
"""Relative L2 difference of the outputs of a model without loss beyond which a runtime is refused."""


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Return ‖value - reference‖ ÷ ‖reference‖ (L2 over all elements); infinity for NaN."""
    scale = torch.linalg.vector_norm(reference.float())
    error = torch.linalg.vector_norm(value.float() - reference.float())
    ratio = float(error / scale) if scale > 0 else float(error)
    return ratio if np.isfinite(ratio) else float("inf")


def refuse_difference(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor], what: str) -> None:
    """Refuse a runtime whose outputs are not the model's, before any precision is lowered.

    Args:
        found: Its outputs.
        expected: Those of the model.
        what: When that is, to begin the sentence with.

    Raises:
        RuntimeRefusedError: One differs by more than `LARGEST_DIFFERENCE`; says by how much.
    """
    for mine, theirs in zip(found, expected, strict=True):
        gap = relative_error(mine, theirs)
        if not gap <= LARGEST_DIFFERENCE:
            raise RuntimeRefusedError(
                f"{what} its outputs differ from the model's by {gap:.2g} "
                f"(relative L2; at most {LARGEST_DIFFERENCE:g} is taken)"
            )
