"""What a workload calls in place of its model when an exported graph runs instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils import _pytree as pytree

from autoprec.runtimes.calls import CallSignature

Arrays = dict[str, NDArray[Any]]
RunGraph = Callable[[Arrays], Sequence[NDArray[Any]]]


class GraphModule(nn.Module):
    """Called as the model is; runs the graph and returns what the model would.

    Args:
        signature: How the model is called.
        run: Runs the graph on named arrays, and returns its outputs in order.

    Attributes:
        ran: Whether it has been called.
    """

    def __init__(self, signature: CallSignature, run: RunGraph) -> None:
        super().__init__()
        # Code that asks a model for its device or dtype looks at a parameter.
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)
        self._signature = signature
        self._run = run
        self.ran = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph; the same structure as the model's own output."""
        self.ran = True
        given = self._signature.arguments(args, kwargs)
        found = iter(self._run({name: np.asarray(tensor.detach()) for name, tensor in given.items()}))
        leaves = [
            torch.from_numpy(next(found)) if is_tensor else None
            for is_tensor in self._signature.tensor_leaves
        ]
        return pytree.tree_unflatten(leaves, self._signature.outputs)
