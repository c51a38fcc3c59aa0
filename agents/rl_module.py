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

WORTH, CHARGE = FORMAT_FEATURES.index("worth"), FORMAT_FEATURES.index("charge")
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

    The score is what the knapsack says of a format, its worth less its charge, plus a learned correction
    (residual policy learning, Silver et al. 2018), so that an untrained policy is already a sensible one.
    Training learns what the knapsack does not know, first of all the caution that multiplies the charge where
    damage is uncertain. `model_config["hidden"]` is the width.
    """

    def setup(self) -> None:
        """Build the layers."""
        hidden = self.model_config["hidden"]
        traits = format_traits()
        self.context = _layers(len(FEATURES) + len(TOTAL_FEATURES), hidden, hidden)
        self.format_layer = nn.Linear(len(FORMAT_FEATURES) + traits.shape[1], hidden)
        self.score = _layers(hidden, hidden, 1)
        self.value = _layers(2 * hidden, hidden, 1)
        self.caution = nn.Linear(hidden, 1)
        self.sharpness = nn.Parameter(torch.tensor(4.0))
        self.register_buffer("traits", traits, persistent=False)
        for last in (self.score[-1], self.value[-1], self.caution):
            assert isinstance(last, nn.Linear)
            nn.init.normal_(last.weight, std=0.01)
            nn.init.zeros_(last.bias)
        nn.init.ones_(self.caution.bias)

    def compute_values(self, batch: dict[str, Any], embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return the expected rewards `[...]`."""
        if embeddings is None:
            embeddings = self._embed(batch)[-1]
        values: torch.Tensor = self.value(embeddings).squeeze(-1)
        return values

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        seen = batch[Columns.OBS]
        formats, situation, summary = self._embed(batch)
        caution = torch.exp(self.caution(torch.relu(situation)))
        balance = seen["formats"][..., WORTH] - caution * seen["formats"][..., CHARGE]
        logits = self.score(formats).squeeze(-1) + self.sharpness * balance
        logits = torch.where(seen["action_mask"] > 0, logits, FLOAT_MIN)
        return {Columns.ACTION_DIST_INPUTS: logits, Columns.EMBEDDINGS: summary}

    def _embed(self, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return embeddings of formats `[..., K, H]`, of unit and totals `[..., H]`, of all `[..., 2H]`."""
        seen = batch[Columns.OBS]
        situation = self.context(torch.cat([seen["unit"], seen["totals"]], dim=-1))
        traits = self.traits.expand(*seen["formats"].shape[:-1], -1)
        formats = self.format_layer(torch.cat([seen["formats"], traits], dim=-1)) + situation.unsqueeze(-2)
        formats = torch.relu(formats)
        pooled = (formats * seen["action_mask"].unsqueeze(-1)).amax(dim=-2)
        return formats, situation, torch.cat([situation, pooled], dim=-1)


def _layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
