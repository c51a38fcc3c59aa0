"""What an operator without a gradient says when one is asked for."""

from __future__ import annotations

from typing import Any, NoReturn

import torch


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
