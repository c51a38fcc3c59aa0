"""Which model files in a directory an earlier job wrote, and which are the user's own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from autoprec.runtimes.available import DATA_FILE, model_files
from autoprec.runtimes.calls import MOST_FORMS


def written_and_foreign(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files under the names of model files that jobs wrote, and all others under these names.

    A job's graph names its plan; the data file is a job's where one of its graphs refers to it. Without the
    onnx package nothing can be read, and every file counts as the user's.
    """
    data = folder / DATA_FILE
    found = [file for name in model_files(MOST_FORMS) if (file := folder / name).exists()]
    written: list[Path] = []
    if found and importlib.util.find_spec("onnx") is not None:
        for file in found:
            names_plan, refers = _traces(file)
            if names_plan:
                written.append(file)
                if refers and data.is_file() and data not in written:
                    written.append(data)
    everything = [*found, data] if data.exists() else found
    return written, [file for file in everything if file not in written]


def _traces(file: Path) -> tuple[bool, bool]:
    """Say whether a file is a graph that names its plan, and whether its weights lie in the data file."""
    import onnx
    from google.protobuf.message import DecodeError

    from autoprec.runtimes.graph_runtime import PLAN_KEY

    try:
        graph = onnx.load(str(file), load_external_data=False)
    except (OSError, ValueError, DecodeError):
        return False, False
    places = (entry for tensor in graph.graph.initializer for entry in tensor.external_data)
    return (
        any(entry.key == PLAN_KEY and entry.value for entry in graph.metadata_props),
        any(entry.key == "location" and entry.value == DATA_FILE for entry in places),
    )
