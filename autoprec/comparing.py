"""How far two tensors are apart."""

from __future__ import annotations

import numpy as np
import torch


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Return ‖value - reference‖ ÷ ‖reference‖ (L2 over all elements); infinity for NaN."""
    scale = torch.linalg.vector_norm(reference.float())
    error = torch.linalg.vector_norm(value.float() - reference.float())
    ratio = float(error / scale) if scale > 0 else float(error)
    return ratio if np.isfinite(ratio) else float("inf")
