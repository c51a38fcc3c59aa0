"""Quality where the workload has none of its own: how close outputs are to those of the model as it came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from autoprec.comparing import Outline, misfit, outline, relative_error
from autoprec.errors import CandidateError, WorkloadError
from autoprec.workload import LoadedWorkload, describe_inputs, iter_tensors


class Fidelity:
    """Judges models by their outputs.

    Args:
        loaded: The workload.
        model: The model as it came; it is run when a model is first judged.
        batches: What models are run on.
    """

    def __init__(self, loaded: LoadedWorkload, model: nn.Module, batches: Sequence[Any]) -> None:
        self._loaded = loaded
        self._model = model
        self._batches = batches
        self._expected: list[tuple[Outline, torch.Tensor]] | None = None

    def of(self, model: nn.Module) -> float:
        """Return 1 - relative L2 error of the outputs, averaged over the batches.

        Raises:
            CandidateError: An output is not finite, or of another make than that of the model as it came.
            WorkloadError: Outputs hold no floating-point numbers.
        """
        if self._expected is None:
            self._expected = [self._output(self._model, inputs) for inputs in self._batches]
        errors = []
        for inputs, (made_as, expected) in zip(self._batches, self._expected, strict=True):
            made, found = self._output(model, inputs)
            if wrong := misfit(made, made_as):
                what = describe_inputs(inputs)
                raise CandidateError(f"the output for {what} is not made as the model's own: {wrong}")
            errors.append(relative_error(found, expected))
        if not np.isfinite(errors).all():
            raise CandidateError("NaN or infinity in the output for an example or a calibration batch")
        return 1.0 - float(np.mean(errors))

    def _output(self, model: nn.Module, inputs: Any) -> tuple[Outline, torch.Tensor]:
        found = self._loaded.run(model, inputs)
        parts = [t.detach().flatten() for t in iter_tensors(found) if t.is_floating_point()]
        if not parts:
            raise WorkloadError(
                f"{self._loaded.reference}: the model's output ({type(found).__name__}) holds no float "
                "tensor to compare; define quality(model)"
            )
        output = torch.cat(parts)
        if not output.numel():
            raise WorkloadError(
                f"{self._loaded.reference}: the model's output has no elements to compare; give inputs that "
                "are not empty, or define quality(model)"
            )
        return outline(found), output
