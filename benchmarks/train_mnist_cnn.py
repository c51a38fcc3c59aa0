"""Train the network of the `mnist-cnn` workload and write its weights. About a minute on two cores.

    python benchmarks/train_mnist_cnn.py

Adam with a one-cycle learning rate, 12 epochs over 4 000 digits shifted by up to two pixels, seed 0.
"""

from __future__ import annotations

import torch
from safetensors.torch import save_file

from autoprec.workloads.mnist_cnn import WEIGHTS, MnistCNN, digits, make_cnn

EPOCHS, BATCH, PEAK_RATE, SHIFT = 12, 64, 3e-3, 2


def main() -> None:
    """Train, print the held-out accuracy of each epoch, and write the safetensors file."""
    torch.manual_seed(0)
    images, labels = digits("train")
    padded = torch.nn.functional.pad(images, (SHIFT,) * 4)
    model = make_cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=PEAK_RATE)
    steps_per_epoch = -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_RATE, epochs=EPOCHS, steps_per_epoch=steps_per_epoch
    )
    for epoch in range(EPOCHS):
        model.train()
        for batch in torch.randperm(len(images)).split(BATCH):
            down, right = torch.randint(0, 2 * SHIFT + 1, (2,)).tolist()
            shifted = padded[batch, :, down : down + 28, right : right + 28]
            loss = torch.nn.functional.cross_entropy(model(shifted), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        accuracy = {split: MnistCNN().quality(model.eval(), split) for split in ("search", "final")}
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}, accuracy {accuracy}")
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, WEIGHTS)
    print(f"wrote {WEIGHTS}")


if __name__ == "__main__":
    main()
