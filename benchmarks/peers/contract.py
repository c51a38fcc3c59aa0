"""What a peer gives, and the ways it may call the model. Runs inside the peer's virtual environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from benchmarks.peers.counting import Counted


@dataclass(frozen=True)
class Task:
    """What a peer is asked for.

    Attributes:
        workload: The model, its data and its judge.
        inputs: The batch that is timed.
        batches: Calibration batches.
        limit: The largest drop of quality, absolute.
        evaluations: Most judgements of a candidate that its search may take, where that can be set.
    """

    workload: Counted
    inputs: Any
    batches: list[Any]
    limit: float
    evaluations: int

    def quality(self, model: nn.Module) -> float:
        """Judge a whole model on the search part of the data; counted."""
        with torch.no_grad():
            return self.workload.quality(model, "search")


@dataclass(frozen=True)
class Found:
    """What a peer found.

    Attributes:
        model: What it made: takes what the model as it came takes.
        choices: See `PeerResult`, as for what follows.
        executable: The same.
        no_speed: The same; empty where the model is to be timed.
        fast: What is timed in place of `model`, where that is another form of it.
        beyond: The same.
        notes: The same.
    """

    model: nn.Module
    choices: dict[str, str]
    executable: str
    no_speed: str = ""
    fast: Callable[[], nn.Module] | None = None
    beyond: dict[str, int] | None = None
    notes: tuple[str, ...] = ()


class Flat(nn.Module):
    """A model as exporters take it: tensors in by position, its first tensor out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Return the first output for the tensors, in the order of the model's arguments."""
        found = self.model(*tensors)
        first: torch.Tensor = found if isinstance(found, torch.Tensor) else found[0]
        return first


class Restored(nn.Module):
    """What a peer made of `Flat`, called and answering as the model as it came.

    Args:
        run: Takes tensors by position and returns one.
        names: The model's arguments in that order; empty where it takes one tensor by position.
        output: Name of its first output; empty where it returns a tensor.
    """

    def __init__(self, run: Callable[..., torch.Tensor], names: tuple[str, ...], output: str) -> None:
        super().__init__()
        self._run = (run,)  # a module in a tuple is no submodule: exported ones refuse eval()
        self.names = names
        self.output = output

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        """Return what the model as it came would, its first output only."""
        found = self._run[0](*args, *(kwargs[name] for name in self.names))
        return SimpleNamespace(**{self.output: found}) if self.output else found


def tensors_of(batch: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors of a batch in the order of the model's arguments."""
    if isinstance(batch, Mapping):
        return tuple(batch.values())
    return (batch,) if isinstance(batch, torch.Tensor) else tuple(batch)


def restored(run: Callable[..., torch.Tensor], task: Task, model: nn.Module) -> Restored:
    """Return what stands for `model`, which is asked once what it returns."""
    names = tuple(task.inputs) if isinstance(task.inputs, Mapping) else ()
    with torch.no_grad():
        found = model(*tensors_of(task.inputs))
    return Restored(run, names, "" if isinstance(found, torch.Tensor) else next(iter(found.keys())))
