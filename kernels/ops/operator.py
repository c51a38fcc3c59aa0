"""How an operation becomes an operator of torch: computed by its reference on CPUs and by Triton on GPUs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NoReturn

import torch


def define_operator(
    name: str,
    schema: str,
    reference: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    module: str | None = None,
    launcher: str = "launch",
) -> None:
    """Register `autoprec::<name>`, which `torch.compile` and `torch.export` keep whole.

    Args:
        name: The operator's name.
        schema: Its arguments and results, as `torch.library.define` takes them.
        reference: Computes it on a CPU.
        fake: Returns empty results of the right shapes, dtypes and strides.
        module: File of `autoprec.kernels.jit` with its launcher, imported at the first launch; `name` if not
            given.
        launcher: The function there that computes it on a CUDA device.
    """

    def on_gpu(*arguments: Any) -> Any:
        found = importlib.import_module(f"autoprec.kernels.jit.{module or name}")
        return getattr(found, launcher)(*arguments)

    operator = f"autoprec::{name}"
    torch.library.define(operator, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(operator, "CPU", reference)
    torch.library.impl(operator, "CUDA", on_gpu)
    torch.library.register_fake(operator, fake)


def without_gradient(name: str) -> None:
    """Make a backward pass through an operator raise, rather than follow its reference or give nothing.

    Args:
        name: The operator's name below `autoprec::`.
    """

    def backward(ctx: Any, *gradients: Any) -> NoReturn:
        raise RuntimeError(
            f"autoprec::{name} has no gradient; call it under torch.no_grad(), or train with "
            "autoprec.kernels.training_linear.TrainingLinear"
        )

    torch.library.register_autograd(f"autoprec::{name}", backward)
