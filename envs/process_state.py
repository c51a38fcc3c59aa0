"""What code under test may change for the whole process, kept."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def process_state_kept() -> Iterator[None]:
    """Put back what code under test may change for the whole process.

    Thread count, default dtype, the quantised engine, gradient mode, precision and determinism of matrix
    products, and the random generators.
    """
    threads = torch.get_num_threads()
    dtype = torch.get_default_dtype()
    engine = torch.backends.quantized.engine
    gradients = torch.is_grad_enabled()
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        if torch.backends.quantized.engine != engine:
            torch.backends.quantized.engine = engine
        torch.set_grad_enabled(gradients)
        torch.set_float32_matmul_precision(precision)
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
