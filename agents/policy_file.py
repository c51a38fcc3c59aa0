"""Policies as data: safetensors bytes and JSON, never a pickle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import safetensors.torch

from autoprec.envs.episodes import FORMAT_FEATURES, TOTAL_FEATURES
from autoprec.envs.space import FEATURES
from autoprec.errors import UserError

if TYPE_CHECKING:
    import torch

SCHEMA = "autoprec.policy/1"


class PolicyError(UserError):
    """A stored policy cannot be used here."""


def _expected() -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "unit_features": list(FEATURES),
        "format_features": list(FORMAT_FEATURES),
        "total_features": list(TOTAL_FEATURES),
    }


def export_policy(state: dict[str, torch.Tensor], training: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return what describes a policy, and its weights as the bytes of a safetensors file.

    Args:
        state: The module's state dict.
        training: JSON-able facts about how it was trained.
    """
    return {**_expected(), "training": training}, safetensors.torch.save(state)


def compatible(meta: dict[str, Any]) -> bool:
    """Say whether a policy sees the world as this version shows it."""
    return all(meta.get(key) == value for key, value in _expected().items())


def import_policy(meta: dict[str, Any], weights: bytes) -> dict[str, torch.Tensor]:
    """Return the state dict of an exported policy.

    Raises:
        PolicyError: It was made for other features, or its bytes are not safetensors.
    """
    if not compatible(meta):
        wrong = next(key for key, value in _expected().items() if meta.get(key) != value)
        raise PolicyError(f"the policy's {wrong} is {meta.get(wrong)!r}, not this version's; train a new one")
    try:
        return dict(safetensors.torch.load(weights))
    except (ValueError, safetensors.SafetensorError) as error:
        raise PolicyError(f"the policy's weights cannot be read: {error}; train a new one") from error
