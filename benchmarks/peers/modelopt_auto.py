"""NVIDIA ModelOpt `auto_quantize`: int8 for the layers that its scores call least sensitive.

It takes a number of bits and no limit on quality, so the least number that keeps the limit is looked for by
halving, each step judged in full, as its users do; its scores are made once.
"""

from __future__ import annotations

import itertools
from typing import Any

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.quantization.algorithms import AutoQuantizeSearcher
from torch import nn

from autoprec.workload import iter_tensors
from benchmarks.peers.contract import Found, Task

NAME = "modelopt"
PACKAGE = "nvidia-modelopt"
CALL = "auto_quantize over INT8_SMOOTHQUANT_CFG and INT8_DEFAULT_CFG, effective_bits by halving"
LEAST, MOST = 8.0, 16.0
STEP = 0.1
"""Effective bits: of int8 everywhere, of nothing quantised, and where halving ends."""


GROUPED = r"^(.*?)\.(query|key|value)$"
"""Its own rules know these layers as `q_proj` and so on; BERT names them otherwise."""


def search(task: Task) -> Found:
    """Score the layers once, then look for the least number of bits that keeps the limit."""
    AutoQuantizeSearcher.quant_grouping_rules.append(GROUPED)
    model, state = mtq.auto_quantize(
        task.workload.build_model(),
        constraints={"effective_bits": LEAST},
        quantization_formats=[mtq.INT8_SMOOTHQUANT_CFG, mtq.INT8_DEFAULT_CFG],
        data_loader=task.batches,
        forward_step=task.workload.run,
        loss_func=Projection(),
        num_calib_steps=len(task.batches),
        num_score_steps=len(task.batches),
    )
    baseline = task.quality(task.workload.build_model())
    best, drop = model, baseline - task.quality(model)
    notes = [f"effective_bits {LEAST}: drop {drop:.5f}"]
    low, high, left = LEAST, MOST, task.evaluations - 1
    met = drop <= task.limit
    while not met and high - low > STEP and left > 0:
        bits = (low + high) / 2
        config = mtq.get_auto_quantize_config(state, {"effective_bits": bits})
        candidate = mtq.quantize(task.workload.build_model(), config, forward_loop=_calibration(task))
        drop, left = baseline - task.quality(candidate), left - 1
        notes.append(f"effective_bits {bits}: drop {drop:.5f}")
        if drop <= task.limit:
            best, high = candidate, bits
        else:
            low = bits
    return Found(
        best,
        read_choices(best),
        "rounding reproduced in fp32",
        no_speed="its int8 is reproduced in fp32 on a CPU; what runs it fast is TensorRT",
        notes=tuple(notes),
    )


class Projection:
    """The loss that its scores come from: the outputs times fixed random numbers, summed.

    The quality here is closeness to the fp32 outputs, whose gradient is zero where nothing is quantised. The
    square of a random projection's gradient is, on average, how far a change moves the outputs.
    """

    def __init__(self) -> None:
        self._generators = itertools.count()

    def __call__(self, output: Any, batch: Any) -> torch.Tensor:
        """Return the loss of a batch."""
        values = torch.cat([tensor.flatten() for tensor in iter_tensors(output)])
        generator = torch.Generator().manual_seed(next(self._generators))
        return (values * torch.randn(values.shape, generator=generator)).sum()


def _calibration(task: Task) -> Any:
    def loop(model: nn.Module) -> None:
        with torch.no_grad():
            for batch in task.batches:
                task.workload.run(model, batch)

    return loop


def read_choices(model: nn.Module) -> dict[str, str]:
    """Return module path to recipe, from the quantisers that are on."""
    choices = {}
    for path, module in model.named_modules():
        weight, data = getattr(module, "weight_quantizer", None), getattr(module, "input_quantizer", None)
        if weight is None or not weight.is_enabled:
            continue
        smooth = getattr(data, "pre_quant_scale", None) is not None
        on = data is not None and data.is_enabled
        choices[path] = ("int8 static smooth" if smooth else "int8 static") if on else "int8 weights"
    return choices
