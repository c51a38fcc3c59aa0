"""The contract of a runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from torch import nn

from autoprec.plan import Plan


class Executable(ABC):
    """A model made ready to run under one plan.

    Attributes:
        model: What the workload's `run` and `quality` are given.
    """

    model: nn.Module

    @abstractmethod
    def applied(self) -> dict[str, tuple[str, str]]:
        """Return module path to (format, implementation), read back from what will really run."""

    @abstractmethod
    def idle(self) -> frozenset[str]:
        """Return the modules of the plan that were replaced but have not run since the executable was made.

        After one run over the example inputs it is empty, or the model reaches its layers by another way
        than its module tree and the plan did not take effect.
        """

    @abstractmethod
    def held_bytes(self) -> int:
        """Return bytes held by weights in whatever form, each storage once."""

    def artefacts(self) -> list[Path]:
        """Return the files that run the model without this package; none where the plan is enough."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Free the executable; it does not run afterwards."""


class Runtime(ABC):
    """Builds executables. It never changes the model that it is given."""

    name: str

    @property
    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Versions of what runs the model, beside torch."""

    @abstractmethod
    def build(self, model: nn.Module, plan: Plan) -> Executable:
        """Return an executable of `model` under `plan`.

        Raises:
            ConversionError: A unit cannot run in the format asked for.
        """
