"""A workload whose judgements are counted, the same one for every tool."""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

from autoprec.workload import LoadedWorkload, Split


class Counted(LoadedWorkload):
    """A workload that counts how often a whole model was judged.

    Attributes:
        judged: Calls of `quality`, by the part of the data.
    """

    def __init__(self, target: Any, reference: str) -> None:
        super().__init__(target, reference)
        self.judged: dict[Split, int] = {"search": 0, "final": 0}

    def quality(self, model: nn.Module, split: Split) -> float:
        """See `LoadedWorkload.quality`."""
        self.judged[split] += 1
        return super().quality(model, split)


def load_counted(place: str) -> Counted:
    """Return the workload at `module:attribute`."""
    module, _, attribute = place.partition(":")
    return Counted(getattr(importlib.import_module(module), attribute), place)
