"""The policy network as RLlib takes it."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.torch_utils import FLOAT_MIN

from autoprec.agents.policy_network import PolicyNetwork

MEMORY = "memory"
"""Key of a batch under which what the network encoded of its episodes may lie."""


class PrecisionModule(TorchRLModule, ValueFunctionAPI):  # type: ignore[misc]  # RLlib has no types
    """A `PolicyNetwork`, as wide as `model_config` says; masked formats get the lowest score there is."""

    def setup(self) -> None:
        """Build the network."""
        self.network = PolicyNetwork(self.model_config["hidden"])

    def compute_values(self, batch: dict[str, Any], embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return the expected rewards `[...]`."""
        if embeddings is None:
            embeddings = self.network(batch[Columns.OBS])[1]
        return self.network.worth(embeddings)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        seen = batch[Columns.OBS]
        scores, summary = self.network(seen, batch.get(MEMORY))
        scores = torch.where(seen["action_mask"] > 0, scores, FLOAT_MIN)
        return {Columns.ACTION_DIST_INPUTS: scores, Columns.EMBEDDINGS: summary}
