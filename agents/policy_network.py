"""The network that a policy is: which format a unit is to have, in view of the whole model.

It is plain torch, so that a stored policy can be checked and looked at without RLlib.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoprec.agents.ppo_settings import HEADS
from autoprec.envs.episodes import FORMAT_FEATURES, GOAL_FEATURES, TOTAL_FEATURES
from autoprec.envs.segments import PROGRESS_FEATURES, SEGMENT_FEATURES, SEGMENTS
from autoprec.envs.space import FEATURES
from autoprec.kernels.formats import FORMATS

WORTH, CHARGE = FORMAT_FEATURES.index("worth"), FORMAT_FEATURES.index("charge")
TRAITS: tuple[str, ...] = (
    "bits", "float_weight", "float_activation", "same_type", "weight_scale", "activation_scale",
)  # fmt: skip
"""What is known of a format by its name alone."""
HIDDEN, LAYERS = 64, 1
"""Width and transformer layers of the policies that are trained."""
INPUTS = {
    "unit_layer.weight": "unit_features",
    "format_layer.weight": "format_features",
    "trait_layer.weight": "format_traits",
    "total_layer.weight": "total_features",
    "goal_layer.weight": "goal_features",
    "segment_layer.weight": "segment_features",
    "progress_keys.weight": "progress_features",
    "progress_values.weight": "progress_features",
}
"""Weights whose columns are features, and where a stored policy names these."""
_SCALES = ("none", "tensor", "static", "channel", "row", "group", "block")

Observed = Mapping[str, Tensor]


def format_traits() -> Tensor:
    """Return the traits of each format, `[K, len(TRAITS)]`, within 0..1.

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


@dataclass(frozen=True)
class Memory:
    """The model as encoded at the start of an episode: what the unit to decide looks up.

    Attributes:
        keys: `[B, SEGMENTS, H]`.
        values: `[B, SEGMENTS, H]`.
        empty: `[B, SEGMENTS]` True where a segment holds no units.
    """

    keys: Tensor
    values: Tensor
    empty: Tensor


class PolicyNetwork(nn.Module):
    """Scores every format of the unit to decide, and values the situation.

    A transformer encodes the model's segments once an episode; at each step the unit attends to them, with
    what was decided in each added. The score of a format is what the knapsack says of it, its worth less its
    charge times a caution, plus a learned correction (residual policy learning, Silver et al. 2018), which is
    zero until it is trained: an untrained policy is already a sensible one.

    Args:
        hidden: Width.
        layers: Transformer layers.
        heads: Attention heads; they divide the width.
    """

    traits: Tensor
    mixed: Tensor

    def __init__(self, hidden: int = HIDDEN, layers: int = LAYERS, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        traits = format_traits()
        self.segment_layer = nn.Linear(len(SEGMENT_FEATURES), hidden)
        self.goal_layer = nn.Linear(len(GOAL_FEATURES), hidden)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(
                hidden, heads, 2 * hidden, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(hidden)
        self.keys = nn.Linear(hidden, hidden)
        self.values = nn.Linear(hidden, hidden)
        self.progress_keys = nn.Linear(len(PROGRESS_FEATURES), hidden, bias=False)
        self.progress_values = nn.Linear(len(PROGRESS_FEATURES), hidden, bias=False)
        self.unit_layer = nn.Linear(len(FEATURES), hidden)
        self.total_layer = nn.Linear(len(TOTAL_FEATURES), hidden, bias=False)
        self.query = nn.Linear(hidden, hidden)
        self.situation = nn.Linear(2 * hidden, hidden)
        self.format_layer = nn.Linear(len(FORMAT_FEATURES), hidden)
        self.trait_layer = nn.Linear(traits.shape[1], hidden, bias=False)
        self.score = _layers(hidden, hidden, 1)
        self.value = _layers(2 * hidden, hidden, 1)
        self.caution = nn.Linear(hidden, 1)
        self.sharpness = nn.Parameter(torch.tensor(4.0))
        self.register_buffer("traits", traits, persistent=False)
        # Tells batches of equal models apart from unequal ones; see `_distinct`.
        mixed = torch.randn(
            len(GOAL_FEATURES) + SEGMENTS * len(SEGMENT_FEATURES),
            generator=torch.Generator().manual_seed(0),
            dtype=torch.float64,
        )
        self.register_buffer("mixed", mixed, persistent=False)
        for last, std in ((self.score[-1], 0.0), (self.caution, 0.0), (self.value[-1], 0.01)):
            assert isinstance(last, nn.Linear)
            nn.init.normal_(last.weight, std=std)
            nn.init.zeros_(last.bias)
        nn.init.ones_(self.caution.bias)

    def encode(self, seen: Observed) -> Memory:
        """Return what is looked up in the model, for observations `[B, ...]`: only `STATIC` ones are read."""
        segments = seen["segments"]
        empty = segments[..., 0] < 0.5
        used = int((~empty).sum(dim=-1).max())
        tokens = self.segment_layer(segments[:, :used]) + self.goal_layer(seen["goal"]).unsqueeze(-2)
        for layer in self.encoder:
            tokens = layer(tokens, src_key_padding_mask=empty[:, :used])
        tokens = self.norm(tokens)
        return Memory(self.keys(tokens), self.values(tokens), empty[:, :used])

    def forward(self, seen: Observed, memory: Memory | None = None) -> tuple[Tensor, Tensor]:
        """Return scores `[B, K]`, those of masked formats like the others, and a summary `[B, 2H]`.

        Args:
            seen: Observations `[B, ...]`.
            memory: `encode` of them, where it is known; rows of one episode are encoded once otherwise.
        """
        if memory is None:
            first, rows = self._distinct(seen)
            known = self.encode({name: seen[name].index_select(0, first) for name in ("goal", "segments")})
            memory = Memory(
                known.keys.index_select(0, rows),
                known.values.index_select(0, rows),
                known.empty.index_select(0, rows),
            )
        unit = torch.relu(self.unit_layer(seen["unit"]) + self.total_layer(seen["totals"]))
        situation = torch.relu(self.situation(torch.cat([unit, self._look_up(unit, seen, memory)], dim=-1)))
        formats = self.format_layer(seen["formats"]) + self.trait_layer(self.traits) + situation.unsqueeze(-2)
        formats = torch.relu(formats)
        pooled = (formats * seen["action_mask"].unsqueeze(-1)).amax(dim=-2)
        caution = torch.exp(self.caution(situation))
        balance = seen["formats"][..., WORTH] - caution * seen["formats"][..., CHARGE]
        scores = self.score(formats).squeeze(-1) + self.sharpness * balance
        return scores, torch.cat([situation, pooled], dim=-1)

    def worth(self, summary: Tensor) -> Tensor:
        """Return the expected rewards `[B]` of what `forward` summed up."""
        values: Tensor = self.value(summary).squeeze(-1)
        return values

    def _look_up(self, unit: Tensor, seen: Observed, memory: Memory) -> Tensor:
        """Attend from units `[B, H]` to the segments, `[B, H]`."""
        used = memory.keys.shape[1]
        progress = seen["progress"][:, :used]
        keys = memory.keys + self.progress_keys(progress)
        values = memory.values + self.progress_values(progress)
        shape = (len(unit), -1, self.heads, unit.shape[-1] // self.heads)
        found = F.scaled_dot_product_attention(
            self.query(unit).view(shape).transpose(1, 2),
            keys.view(shape).transpose(1, 2),
            values.view(shape).transpose(1, 2),
            attn_mask=~memory.empty[:, None, None, :],
        )
        return found.transpose(1, 2).reshape(unit.shape)

    def _distinct(self, seen: Observed) -> tuple[Tensor, Tensor]:
        """Return one row of each distinct model and goal in a batch, and which of these each row is.

        Rows are told apart by a random projection in double precision; a training batch holds every model as
        often as it has units.
        """
        static = torch.cat([seen["goal"], seen["segments"].flatten(1)], dim=-1).double()
        _, rows = torch.unique(static @ self.mixed, return_inverse=True)
        first = torch.full((int(rows.max()) + 1,), len(rows), device=rows.device)
        order = torch.arange(len(rows), device=rows.device)
        return first.scatter_reduce(0, rows, order, "amin"), rows


def _layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
