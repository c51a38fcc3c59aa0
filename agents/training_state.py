"""Keeping training and measuring apart: what is process-wide has two owners, who never see each other's."""

from __future__ import annotations

import random

import numpy as np
import torch

from autoprec.envs.process_state import ProcessState


class TrainingState:
    """Process-wide settings as training sees them: its own inside a `with`, the process's outside.

    RLlib seeds and draws from the global generators of Python, NumPy and torch, and with a seed it turns on
    torch's deterministic algorithms, which slow some operations down and refuse others. Training also runs on
    one thread, since its networks are too small for more. None of that may reach a measured run, and no
    random number that a measured run draws may change training.
    """

    def __init__(self, seed: int) -> None:
        outer = ProcessState.take()
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self._inner = ProcessState.take()
        outer.put()

    def __enter__(self) -> None:
        self._outer = ProcessState.take()
        self._inner.put()

    def __exit__(self, *exception: object) -> None:
        self._inner = ProcessState.take()
        self._outer.put()
