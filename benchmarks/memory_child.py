"""Load one workload's model, apply a plan if one is named, and print the memory that the model adds."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import warnings

import psutil
import torch

from autoprec.apply import apply_plan
from autoprec.finding import load_workload
from autoprec.plan import Plan


def main() -> None:
    """Weigh this process before the model is there and after it has run."""
    loaded = load_workload(sys.argv[1])
    # Imports and caches that loading leaves behind are not the model's: load once and drop it.
    loaded.build_model()
    before = _unshared()
    model = loaded.build_model()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        # Weights that a file is mapped for count once they are read; a copy is always counted.
        parameter.data = parameter.data.clone()
    if sys.argv[2]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            apply_plan(model, Plan.load(sys.argv[2]))
    examples = loaded.examples("latency")
    with torch.inference_mode():
        loaded.run(model, examples[0].inputs)
    del examples
    sys.stdout.write(json.dumps(_unshared() - before) + "\n")


def _unshared() -> int:
    gc.collect()
    # glibc keeps freed blocks for itself; give them back, so that only what is held counts.
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(psutil.Process().memory_full_info().uss)


if __name__ == "__main__":
    main()
