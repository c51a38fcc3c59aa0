"""How far two tensors are apart, and whether two outputs are of one make."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from autoprec.errors import RuntimeRefusedError
from autoprec.workload import describe_inputs, named_tensors

LARGEST_DIFFERENCE = 1e-3
"""Relative L2 difference of the outputs of a model without loss beyond which a runtime is refused."""

Outline = tuple[tuple[str, str], ...]
"""Place of each tensor in an output, and its number type and shape; equal for outputs of one make."""


def outline(value: Any) -> Outline:
    """Return what an output is made of; empty where it holds no tensor."""
    return tuple((place, describe_inputs(tensor)) for place, tensor in named_tensors(value))


def misfit(found: Outline, expected: Outline) -> str:
    """Return the first place where an output is made of something else than expected; empty for none."""
    for mine, theirs in itertools.zip_longest(found, expected, fillvalue=("", "nothing")):
        if mine != theirs:
            return f"{' '.join(mine).strip()}, expected {' '.join(theirs).strip()}"
    return ""


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Return ‖value - reference‖ ÷ ‖reference‖ (L2 over all elements); infinity for NaN or another shape."""
    if value.shape != reference.shape:
        return float("inf")
    own = torch.promote_types(torch.promote_types(value.dtype, reference.dtype), torch.float32)
    # Squares of what fp32 holds are more than fp32 holds.
    wide = torch.complex128 if own.is_complex else torch.float64
    scale = torch.linalg.vector_norm(reference.to(own), dtype=wide)
    error = torch.linalg.vector_norm(value.to(own) - reference.to(own), dtype=wide)
    ratio = float(error / scale) if scale > 0 else float(error)
    return ratio if np.isfinite(ratio) else float("inf")


def refuse_difference(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor], what: str) -> None:
    """Refuse a runtime whose outputs are not the model's, before any precision is lowered.

    Args:
        found: Its outputs.
        expected: Those of the model.
        what: When that is, to begin the sentence with.

    Raises:
        RuntimeRefusedError: They are of another number, shape or type; or one differs by more than
            `LARGEST_DIFFERENCE`: says by how much.
    """
    found, expected = list(found), list(expected)
    if wrong := misfit(outline(found), outline(expected)):
        raise RuntimeRefusedError(f"{what} its outputs are not made as the model's: {wrong}")
    for mine, theirs in zip(found, expected, strict=True):
        gap = relative_error(mine, theirs)
        if not gap <= LARGEST_DIFFERENCE:
            raise RuntimeRefusedError(
                f"{what} its outputs differ from the model's by {gap:.2g} "
                f"(relative L2; at most {LARGEST_DIFFERENCE:g} is taken)"
            )
