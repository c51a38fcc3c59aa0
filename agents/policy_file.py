"""Policies as data: safetensors bytes and JSON, never a pickle.

A policy names the columns that it reads. One that was made before a column was added is good for this
version: its columns are found by name, and a new one weighs nothing until it is trained. The vocabulary of
formats does not matter, since formats are told apart by their traits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoprec.envs.episodes import FORMAT_FEATURES, GOAL_FEATURES, TOTAL_FEATURES
from autoprec.envs.segments import PROGRESS_FEATURES, SEGMENT_FEATURES
from autoprec.envs.space import FEATURES
from autoprec.errors import UserError

if TYPE_CHECKING:
    import torch

SCHEMA = "autoprec.policy/2"
TRAIN = "autoprec policy train makes a new one"
SHIPPED = Path(__file__).parent / "pretrained.json"
"""What describes the policy that is shipped; its weights lie beside it."""


class PolicyError(UserError):
    """A stored policy cannot be used here."""


@dataclass(frozen=True)
class Policy:
    """A trained policy as it is stored.

    Attributes:
        meta: JSON: schema, network sizes, the names of the columns that it reads, how it was trained.
        weights: The bytes of a safetensors file.
        origin: Where it lies, for people.
    """

    meta: Mapping[str, Any]
    weights: bytes
    origin: str = "made here"


def export_policy(state: Mapping[str, torch.Tensor], training: Mapping[str, Any]) -> Policy:
    """Return a policy.

    Args:
        state: The state dict of a `PolicyNetwork`.
        training: JSON-able facts about how it was trained.
    """
    import safetensors.torch

    meta = {"schema": SCHEMA, "network": _network(), **_columns(), "training": dict(training)}
    return Policy(meta, safetensors.torch.save(dict(state)))


def refusal(meta: Mapping[str, Any]) -> str | None:
    """Return why a policy that is described so cannot be used here, or `None` where it can."""
    if meta.get("schema") != SCHEMA:
        return f"its schema is {meta.get('schema')!r}, and this version reads {SCHEMA!r}"
    if meta.get("network") != _network():
        return f"its network is {meta.get('network')!r}, and this version's {_network()!r}"
    for key, known in _columns().items():
        named = meta.get(key)
        if not isinstance(named, list) or len(set(map(str, named))) != len(named):
            return f"its {key} are {named!r}, not a list of distinct names"
        if missing := [name for name in named if name not in known]:
            return f"it reads {missing[0]!r} among its {key}, which this version does not have"
    return None


def import_policy(policy: Policy) -> dict[str, torch.Tensor]:
    """Return the state dict of a policy for this version's `PolicyNetwork`.

    Raises:
        PolicyError: It reads what this version does not have, or its weights are damaged.
    """
    import safetensors.torch
    import torch

    from autoprec.agents.policy_network import INPUTS, PolicyNetwork

    if reason := refusal(policy.meta):
        raise PolicyError(f"the policy cannot be used: {reason}; {TRAIN}")
    try:
        found = safetensors.torch.load(policy.weights)
    except (ValueError, KeyError, safetensors.SafetensorError) as error:
        raise PolicyError(f"the policy's weights cannot be read: {error}; {TRAIN}") from error
    expected = PolicyNetwork().state_dict()
    if odd := sorted(found.keys() ^ expected.keys()):
        raise PolicyError(f"the policy's weights are of another network ({odd[0]}); {TRAIN}")
    columns = _columns()
    state = {}
    for name, like in expected.items():
        value, shape = found[name], tuple(like.shape)
        key = INPUTS.get(name)
        if key is not None:
            shape = (shape[0], len(policy.meta[key]))
        if tuple(value.shape) != shape or value.dtype != like.dtype:
            raise PolicyError(
                f"the policy's weights {name} are {value.dtype} {tuple(value.shape)}, "
                f"not {like.dtype} {shape}; {TRAIN}"
            )
        if not torch.isfinite(value).all():
            raise PolicyError(f"the policy's weights {name} hold NaN or infinity; {TRAIN}")
        if key is not None:
            wide = torch.zeros_like(like)
            wide[:, [columns[key].index(column) for column in policy.meta[key]]] = value
            value = wide
        state[name] = value
    return state


def _network() -> dict[str, int]:
    from autoprec.agents.policy_network import HIDDEN, LAYERS
    from autoprec.agents.ppo_settings import HEADS

    return {"hidden": HIDDEN, "layers": LAYERS, "heads": HEADS}


def _columns() -> dict[str, list[str]]:
    from autoprec.agents.policy_network import TRAITS

    return {
        "unit_features": list(FEATURES),
        "format_features": list(FORMAT_FEATURES),
        "format_traits": list(TRAITS),
        "total_features": list(TOTAL_FEATURES),
        "goal_features": list(GOAL_FEATURES),
        "segment_features": list(SEGMENT_FEATURES),
        "progress_features": list(PROGRESS_FEATURES),
    }
