"""Keeping training and measuring apart: what is process-wide has two owners, who never see each other's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


class ProcessState:
    """Process-wide settings as training sees them: its own inside a `with`, the process's outside.

    RLlib seeds and draws from the global generators of Python, NumPy and torch, and with a seed it turns on
    torch's deterministic algorithms, which slow some operations down and refuse others. Training also runs on
    one thread, since its networks are too small for more. None of that may reach a measured run, and no
    random number that a measured run draws may change training.
    """

    def __init__(self, seed: int) -> None:
        outer = _take()
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self._inner = _take()
        _put(outer)

    def __enter__(self) -> None:
        self._outer = _take()
        _put(self._inner)

    def __exit__(self, *exception: object) -> None:
        self._inner = _take()
        _put(self._outer)


def _take() -> tuple[Any, ...]:
    return (
        random.getstate(),
        np.random.get_state(),
        torch.get_rng_state(),
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    )


def _put(state: tuple[Any, ...]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])
    torch.set_num_threads(state[3])
    torch.set_deterministic_debug_mode(state[4])
    torch.backends.cudnn.deterministic = state[5]
    torch.backends.cudnn.benchmark = state[6]
