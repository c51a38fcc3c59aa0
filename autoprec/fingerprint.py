"""Fingerprints: of a model's structure, of its weights, and of all that measured figures depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autoprec.digest import Digest, source_of, sources_of
from autoprec.workload import Example, LoadedWorkload

if TYPE_CHECKING:
    from torch import nn


def architecture_fingerprint(model: nn.Module) -> str:
    """Return a digest of a model's structure: module names and types, parameter shapes, what is tied.

    Weights and dtypes are not part of it: a fine-tune of the same model has the same fingerprint.
    """
    sha = hashlib.sha256()
    first: dict[int, str] = {}
    for path, module in model.named_modules():
        sha.update(f"{path}|{type(module).__qualname__}\n".encode())
        for name, parameter in module.named_parameters(recurse=False):
            owner = first.setdefault(id(parameter), f"{path}.{name}")
            sha.update(f"{name}|{tuple(parameter.shape)}|{owner}\n".encode())
    return sha.hexdigest()[:32]


def weights_fingerprint(model: nn.Module) -> str:
    """Return a digest of every parameter and buffer of a model."""
    return Digest().feed(dict(model.state_dict())).hexdigest()[:32]


def measured_fingerprint(
    loaded: LoadedWorkload,
    model: nn.Module,
    examples: Sequence[Example],
    calibration: Sequence[Any] = (),
    *,
    weights: str | None = None,
) -> str:
    """Return a digest of all that measured figures depend on, the device aside.

    Structure and code of the model, every parameter and buffer, the workload's code and data, the inputs that
    are timed, and the calibration batches. `weights` is the model's `weights_fingerprint`, where it is known
    already: to compute it reads every weight.
    """
    digest = Digest().feed(architecture_fingerprint(model)).feed(weights or weights_fingerprint(model))
    digest.feed(loaded.digest()).feed([(example.inputs, example.weight) for example in examples])
    digest.feed(list(calibration))
    # torch's own are known by its version.
    kinds = {type(module) for module in model.modules() if not type(module).__module__.startswith("torch.")}
    digest.feed({source_of(kind) for kind in kinds}).feed(sources_of(kind.__module__ for kind in kinds))
    return digest.hexdigest()[:32]
