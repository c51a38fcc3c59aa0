"""The settings of PPO that a search may choose; importing this needs neither torch nor Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from autoprec.errors import SettingError

HEADS = 4
"""Attention heads of the policy's network."""


@dataclass(frozen=True, slots=True)
class PPOSettings:
    """How the policy of a search is trained.

    Attributes:
        first_iterations: Iterations before the first proposal. On eight synthetic landscapes 8 and 3 of them
            found no better plans than 3 and 1, at twice the thinking.
        iterations: Iterations before every later proposal.
        lr: Learning rate of Adam.
        entropy: Weight of the policy's entropy in the loss.
        epochs: Passes over each training batch.
        batch_steps: Steps of one training batch, in whole episodes: 4 at least, 64 at most.
        hidden: Width of the network, a multiple of `HEADS`; with another than the default, training starts
            from no shipped policy.
    """

    first_iterations: int = 3
    iterations: int = 1
    lr: float = 1e-3
    entropy: float = 0.002
    epochs: int = 3
    batch_steps: int = 1536
    hidden: int = 64

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingError: One is of another type than its default, or out of range.
        """
        for field in fields(self):
            value, whole = getattr(self, field.name), isinstance(field.default, int)
            least = 0 if field.name in ("first_iterations", "iterations", "entropy") else 1 if whole else 1e-9
            if not isinstance(value, int if whole else (int, float)) or not least <= value < 1e9:
                kind = "a whole number" if whole else "a number"
                raise SettingError(
                    f"PPO setting {field.name} is {value!r}; it must be {kind}, {least:g} or more"
                )
        if self.hidden % HEADS:
            raise SettingError(f"PPO setting hidden is {self.hidden}; it must be a multiple of {HEADS}")

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> PPOSettings:
        """Return settings given as text, such as `{"lr": "3e-4"}`; the others keep their defaults.

        Raises:
            SettingError: A name is unknown, or a text is no number of the right kind.
        """
        known = {field.name: int if isinstance(field.default, int) else float for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, text in texts.items():
            if name not in known:
                raise SettingError(f"unknown PPO setting {name!r}; use one of {', '.join(known)}")
            try:
                values[name] = known[name](text)
            except ValueError:
                kind = "a whole number" if known[name] is int else "a number"
                raise SettingError(f"PPO setting {name} is {text!r}; it must be {kind}") from None
        return cls(**values)

    def changes(self) -> dict[str, int | float]:
        """Return what differs from the defaults."""
        default = asdict(PPOSettings())
        return {name: value for name, value in asdict(self).items() if value != default[name]}
