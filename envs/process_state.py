"""What code may change for the whole process: taken down, put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autoprec.workload import gpu_generators


@dataclass(frozen=True)
class ProcessState:
    """Settings and random generators that a process has once.

    Attributes:
        threads: Threads of torch.
        dtype: Its default dtype.
        engine: Its engine of quantised operators.
        gradients: Whether gradients are recorded.
        matmul_precision: Of products in fp32.
        deterministic: Its mode of deterministic algorithms: 0 off, 1 warn, 2 refuse others.
        cudnn: Whether cuDNN is deterministic, and whether it tries its kernels out.
        generators: States of the generators of torch, NumPy and Python.
        gpu_generators: States of those of the GPUs; none where no GPU is in use.
    """

    threads: int
    dtype: torch.dtype
    engine: str
    gradients: bool
    matmul_precision: str
    deterministic: int
    cudnn: tuple[bool, bool]
    generators: tuple[Any, Any, Any]
    gpu_generators: list[torch.Tensor]

    @classmethod
    def take(cls) -> ProcessState:
        """Return the state now."""
        return cls(
            threads=torch.get_num_threads(),
            dtype=torch.get_default_dtype(),
            engine=torch.backends.quantized.engine,
            gradients=torch.is_grad_enabled(),
            matmul_precision=torch.get_float32_matmul_precision(),
            deterministic=torch.get_deterministic_debug_mode(),
            cudnn=(torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
            generators=(torch.get_rng_state(), np.random.get_state(), random.getstate()),
            gpu_generators=gpu_generators(),
        )

    def put(self) -> None:
        """Make this the state; what is so already is not touched, since setting it can cost time."""
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.dtype)
        if torch.backends.quantized.engine != self.engine:
            torch.backends.quantized.engine = self.engine
        torch.set_grad_enabled(self.gradients)
        torch.set_float32_matmul_precision(self.matmul_precision)
        if torch.get_deterministic_debug_mode() != self.deterministic:
            torch.set_deterministic_debug_mode(self.deterministic)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = self.cudnn
        ours, numpys, pythons = self.generators
        torch.set_rng_state(ours)
        np.random.set_state(numpys)
        random.setstate(pythons)
        if self.gpu_generators:
            torch.cuda.set_rng_state_all(self.gpu_generators)


@contextmanager
def process_state_kept() -> Iterator[None]:
    """Put back what code under test may change for the whole process."""
    before = ProcessState.take()
    try:
        yield
    finally:
        before.put()
