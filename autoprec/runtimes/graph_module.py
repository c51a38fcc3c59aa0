"""What a workload calls in place of its model when exported graphs run instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from autoprec.errors import RuntimeRefusedError
from autoprec.runtimes.calls import Calls
from autoprec.runtimes.structure import flatten

Arrays = dict[str, NDArray[Any]]
RunGraph = Callable[[Arrays], Sequence[NDArray[Any]]]


class GraphModule(nn.Module):
    """Called as the model is; runs the graph of the call's form, and does what the model would.

    Tensors share their memory with the arrays that the runtime takes and gives, where they lie in order.

    Args:
        calls: How the model is called.
        load: Loads the graph of a form, given its index, when it is first needed: returns what runs it on
            named arrays and gives its outputs in order.

    Attributes:
        ran: Whether it has been called.
    """

    def __init__(self, calls: Calls, load: Callable[[int], RunGraph]) -> None:
        super().__init__()
        # Code that asks a model for its device or dtype looks at a parameter.
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)
        self._calls = calls
        self._forms = {form.arguments: (index, form) for index, form in enumerate(calls.forms)}
        self._load_graph = load
        self._loaded: dict[int, tuple[RunGraph, tuple[str, ...]]] = {}
        self.ran = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph; the same structure as the model's own output, and the same changes to arguments."""
        self.ran = True
        given = self._calls.named(args, kwargs)
        structure, tensors = flatten(given)
        if structure not in self._forms:
            raise self._calls.unknown(structure)
        index, form = self._forms[structure]
        self.load(index)
        run, names = self._loaded[index]
        arrays = [tensor.detach().contiguous().numpy() for tensor in tensors]
        try:
            found = run(dict(zip(names, arrays, strict=True)))
        except Exception as error:
            if misfit := form.misfit(tensors):
                raise RuntimeRefusedError(misfit) from error
            raise
        return form.give(given, map(torch.from_numpy, found))

    def load(self, index: int) -> None:
        """Load the graph of a form, where it is not loaded already."""
        if index not in self._loaded:
            self._loaded[index] = self._load_graph(index), self._calls.forms[index].inputs
