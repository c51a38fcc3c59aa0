"""Train the model of the `gpt-small` workload and write its weights. About ten minutes on two free cores.

    python benchmarks/train_gpt_small.py

AdamW with a short warm-up and a rate that then falls linearly to zero, windows of 256 characters, seed 0.
Reaches a held-out loss of 1.09 (search) and 1.12 (final) nats a character.
"""

from __future__ import annotations

import argparse
import time

import torch
from safetensors.torch import save_file
from torch.nn import functional

from autoprec.workloads.gpt_small import GPT, WEIGHTS, GPTSmall, characters

BATCH, LENGTH = 4, 256
RATE, WARM_UP = 3e-3, 50


def main() -> None:
    """Train, print the loss as it goes and on held-out text, and write the safetensors file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    steps: int = parser.parse_args().steps
    torch.manual_seed(0)
    text = characters("train")
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.99), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARM_UP, 1.0, 1.25 * (1 - step / steps))
    )
    started, smooth = time.perf_counter(), 0.0
    for step in range(1, steps + 1):
        starts = torch.randint(0, len(text) - LENGTH - 1, (BATCH, 1))
        window = text[starts + torch.arange(LENGTH + 1)]
        logits, _ = model(window[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        smooth += (loss.item() - smooth) * max(0.05, 1 / step)
        if step % 50 == 0:
            print(f"step {step}: loss {smooth:.3f}, {time.perf_counter() - started:.0f} s", flush=True)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, WEIGHTS)
    WEIGHTS.chmod(0o644)
    held_out = {split: -GPTSmall().quality(model.eval(), split) for split in ("search", "final")}
    print(f"held-out loss {held_out}; wrote {WEIGHTS}")


if __name__ == "__main__":
    main()
