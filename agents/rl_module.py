"""The policy and value network."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.torch_utils import FLOAT_MIN
from torch import nn

from autoprec.envs.episodes import FORMAT_FEATURES, TOTAL_FEATURES
from autoprec.envs.space import FEATURES
from autoprec.kernels.formats import FORMATS

GAIN = FORMAT_FEATURES.index("gain")
_SCALES = ("none", "tensor", "static", "channel", "row", "group", "block")


def format_traits() -> torch.Tensor:
    """Return what is known of each format by its name alone, `[K, 6]`, within 0..1.

    Formats are told apart by these, not by their index, so a policy stays good when the vocabulary grows.
    """
    return torch.tensor(
        [
            [
                item.bits / 32,
                float("float" in item.weight),
                float("float" in item.activation),
                float(item.activation == item.weight),
                _SCALES.index(item.weight_scale) / (len(_SCALES) - 1),
                _SCALES.index(item.activation_scale) / (len(_SCALES) - 1),
            ]
            for item in FORMATS.values()
        ]
    )


class PrecisionModule(TorchRLModule, ValueFunctionAPI):  # type: ignore[misc]  # RLlib has no types
    """Scores every format with one shared network; masked formats get the lowest score there is.

    The score is a correction to what the knapsack's prices say of a format (residual policy learning, Silver
    et al. 2018), so that an untrained policy is already a sensible one and training learns what the prices do
    not know: how far to trust them. `model_config["hidden"]` is the width.
    """

    def setup(self) -> None:
        """Build the layers."""
        hidden = self.model_config.get("hidden", 64)
        traits = format_traits()
        self.context = _layers(len(FEATURES) + len(TOTAL_FEATURES), hidden, hidden)
        self.format_layer = nn.Linear(len(FORMAT_FEATURES) + traits.shape[1], hidden)
        self.score = _layers(hidden, hidden, 1)
        self.value = _layers(2 * hidden, hidden, 1)
        self.sharpness = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("traits", traits, persistent=False)
        with torch.no_grad():
            for head in (self.score, self.value):
                head[-1].weight.mul_(0.1)
                head[-1].bias.zero_()

    def compute_values(self, batch: dict[str, Any], embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return the expected rewards `[...]`."""
        if embeddings is None:
            embeddings = self._embed(batch)[1]
        return self.value(embeddings).squeeze(-1)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        seen = batch[Columns.OBS]
        formats, summary = self._embed(batch)
        logits = self.score(formats).squeeze(-1) + self.sharpness * seen["formats"][..., GAIN]
        logits = torch.where(seen["action_mask"] > 0, logits, FLOAT_MIN)
        return {Columns.ACTION_DIST_INPUTS: logits, Columns.EMBEDDINGS: summary}

    def _embed(self, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return an embedding of each format `[..., K, H]` and a summary of the situation `[..., 2H]`."""
        seen = batch[Columns.OBS]
        situation = self.context(torch.cat([seen["unit"], seen["totals"]], dim=-1))
        traits = self.traits.expand(*seen["formats"].shape[:-1], -1)
        formats = self.format_layer(torch.cat([seen["formats"], traits], dim=-1)) + situation.unsqueeze(-2)
        formats = torch.relu(formats)
        pooled = (formats * seen["action_mask"].unsqueeze(-1)).amax(dim=-2)
        return formats, torch.cat([situation, pooled], dim=-1)


def _layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
