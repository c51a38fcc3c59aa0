"""Finding a workload: in a file, in a module, or by the name of a ready-made one."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

from autoprec.errors import WorkloadError
from autoprec.workload import LoadedWorkload, guarded

ENTRY_POINTS = "autoprec.workloads"


def load_workload(reference: Any) -> LoadedWorkload:
    """Find a workload.

    Args:
        reference: `path/to/file.py:name`, `package.module:name`, a ready-made name (entry-point group
            `autoprec.workloads`), or a workload class or instance. What is loaded already is returned.

    Raises:
        WorkloadError: There is no such file, module, attribute or name, or importing it raises.
    """
    if isinstance(reference, LoadedWorkload):
        return reference
    if not isinstance(reference, str):
        kind = reference if hasattr(reference, "__qualname__") else type(reference)
        return LoadedWorkload(reference, f"{kind.__module__}:{kind.__qualname__}")
    place, colon, attribute = reference.rpartition(":")
    if not colon:
        return _load_ready_made(reference)
    if not place or not attribute:
        raise WorkloadError(f"workload {reference!r} is not of the form file.py:name or package.module:name")
    module = (
        _import_file(Path(place), reference) if place.endswith(".py") else _import_module(place, reference)
    )
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise WorkloadError(
                f"workload {reference!r}: {place} has no {attribute!r}; it has {_names(module)}"
            )
        target = getattr(target, part)
    return LoadedWorkload(target, reference)


def ready_made() -> dict[str, str]:
    """Return the ready-made workloads, name to `module:attribute`."""
    return {point.name: point.value for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def _load_ready_made(name: str) -> LoadedWorkload:
    known = ready_made()
    if name not in known:
        hint = f" Did you mean {name}:CLASS?" if name.endswith(".py") else ""
        raise WorkloadError(
            f"unknown workload {name!r}.{hint} Ready-made: {', '.join(sorted(known)) or 'none'}. "
            "Your own: path/to/file.py:name or package.module:name"
        )
    module, _, attribute = known[name].partition(":")
    return LoadedWorkload(getattr(_import_module(module, name), attribute), name)


def _import_file(path: Path, reference: str) -> Any:
    if not path.is_file():
        raise WorkloadError(f"workload {reference!r}: there is no file {str(path)!r}")
    resolved = path.resolve()
    name = f"_autoprec_workload_{hashlib.sha256(str(resolved).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise WorkloadError(f"workload {reference!r}: {str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # As `python file.py` does: the file's neighbours can be imported.
    if str(resolved.parent) not in sys.path:
        sys.path.insert(0, str(resolved.parent))
    loader = spec.loader
    try:
        guarded(f"workload {reference!r}: importing {path}", lambda: loader.exec_module(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str, reference: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return guarded(f"workload {reference!r}: importing {name}", lambda: importlib.import_module(name))


def _names(module: Any) -> str:
    public = [
        name for name, value in vars(module).items() if not name.startswith("_") and inspect.isclass(value)
    ]
    return ", ".join(public) or "no class"
