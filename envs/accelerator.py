"""What measuring on an accelerator needs beside a CPU's: a clock that waits, and memory that is given back.

A GPU does its work after the call that asked for it has returned. What ends in a number that Python holds (a
quality, whether outputs are finite) has waited for it already; what is timed has to wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from autoprec.errors import WorkloadError, one_line

Clock = Callable[[], float]
"""Returns seconds from some fixed time on."""


def clock_of(device: torch.device) -> Clock:
    """Return the clock for work on a device: on a GPU, all that was asked of it is done before it is read.

    For a CPU that is `time.perf_counter` itself.
    """
    if device.type != "cuda":
        return time.perf_counter

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


def free_cache(device: torch.device) -> None:
    """Give back the memory of a GPU that torch keeps for later, so that each run finds the same."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def check_answers(device: torch.device) -> None:
    """Check that a GPU still works: after a kernel's illegal access every call of the process fails.

    Raises:
        WorkloadError: It does not. What is measured from here on would be blamed for what another plan did.
    """
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise WorkloadError(
            f"{device} does not answer since the last run ({one_line(error)}); go on in a new process, "
            "with --resume"
        ) from error
