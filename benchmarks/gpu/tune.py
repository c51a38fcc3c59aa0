"""Run a whole tuning job on a GPU: a GPT with random weights, decoding and reading a prompt.

    python -m benchmarks.gpu.tune --budget 10m

`--device cpu` runs the same job with a tiny model, which shows that the script works and tells nothing of
GPUs. The weights are random: speeds and bytes are those of such a model, and quality is only how close
outputs are to its own as it came, in bf16. The plan can be measured again:

    autoprec check autoprec-gpu/plan.json benchmarks/gpu/tune.py:OnGPU
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoprec.errors import UserError
from autoprec.workload import Example

DECODED = 32
"""Tokens decoded for each prompt that is read."""


class Block(nn.Module):
    """A layer of a GPT: causal attention, then two products with GELU between them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the next hidden states, [batch, tokens, width] as given."""
        seen = self.before_attention(hidden)
        split = (
            layer(seen).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(*split, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        return hidden + self.down(F.gelu(self.up(self.before_mlp(hidden))))


class GPT(nn.Module):
    """A GPT without a cache: ids [batch, tokens] to the logits after the last, [batch, vocabulary]."""

    def __init__(self, width: int, layers: int, heads: int, vocabulary: int, longest: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits."""
        places = torch.arange(ids.shape[1], device=ids.device)
        hidden = self.blocks(self.tokens(ids) + self.places(places))
        return self.head(self.last(hidden[:, -1]))


class OnGPU:
    """About 0.9 billion parameters in bf16 on a GPU: 1 row while it decodes, 2048 where it reads a prompt."""

    device = "cuda"
    width, layers, heads, vocabulary, prompt = 2048, 16, 16, 32000, 2048

    def build_model(self) -> nn.Module:
        """Return the model; its weights are the same each time on one kind of device."""
        torch.manual_seed(0)
        with torch.device(self.device):
            model = GPT(self.width, self.layers, self.heads, self.vocabulary, self.prompt)
        return model.to(torch.bfloat16)

    def example_inputs(self) -> list[Example]:
        """Return the two shapes by how often a server sees them."""
        return [Example(self._ids(1), DECODED, "decode"), Example(self._ids(self.prompt), 1.0, "prefill")]

    def calibration(self) -> list[Tensor]:
        """Return prompts that are not timed."""
        return [self._ids(self.prompt, seed) for seed in (1, 2)]

    def _ids(self, tokens: int, seed: int = 0) -> Tensor:
        drawn = torch.Generator().manual_seed(seed)
        return torch.randint(self.vocabulary, (1, tokens), generator=drawn).to(self.device)


class OnCPU(OnGPU):
    """The same, tiny, where there is no GPU."""

    device = "cpu"
    width, layers, heads, vocabulary, prompt = 64, 1, 4, 128, 64


def main() -> int:
    """Tune, print the plans, write them; return the exit code: 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description="Run a whole tuning job on a GPU.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a tiny model")
    parser.add_argument("--budget", default="10m", help="wall time or measured runs, as of `autoprec tune`")
    parser.add_argument("--max-quality-drop", default="5%", help="as of `autoprec tune`")
    parser.add_argument("--objective", default="latency", help="as of `autoprec tune`")
    parser.add_argument("--out", type=Path, default=Path("autoprec-gpu"), help="for plan, report and store")
    parser.add_argument("--resume", action="store_true", help="go on with the unfinished job")
    given = vars(parser.parse_args())
    device = given.pop("device")
    if device == "cuda" and not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no GPU here; --device cpu tries the script", file=sys.stderr)
        return 2
    from autoprec.console import run_tune

    try:
        given["out"].mkdir(parents=True, exist_ok=True)
        name = OnGPU.__name__ if device == "cuda" else OnCPU.__name__
        return run_tune(f"{Path(__file__)}:{name}", store=str(given["out"] / "store.db"), **given)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
