"""Digests of what a workload is made of: tensors, arrays, containers, objects and code, all by content.

Equal content gives an equal digest in every process. What cannot be told apart by content (an open file, a
lock) counts by its type only. Importing this module is light.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping, Set
from pathlib import Path, PurePath
from typing import Any

MAX_DEPTH = 20
_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_WRAPPERS = (staticmethod, classmethod, types.MethodType)


class Digest:
    """A SHA-256 that is fed Python values.

    Args:
        own: Names of modules whose objects are looked into attribute by attribute, as dataclasses are.
    """

    def __init__(self, own: Set[str] = frozenset()) -> None:
        self._sha = hashlib.sha256()
        self._own = own
        self._open: set[int] = set()  # containers being fed: they may hold themselves

    def hexdigest(self) -> str:
        """Return the digest of everything fed so far."""
        return self._sha.hexdigest()

    def feed(self, value: Any) -> Digest:
        """Take a value in; the order of calls counts."""
        if isinstance(value, _PLAIN):
            self._text(f"{type(value).__name__}:{value!r};")
        elif hasattr(value, "untyped_storage"):
            self._tensor(value)
        elif hasattr(value, "tobytes") and hasattr(value, "dtype"):
            self._array(value)
        elif id(value) in self._open or len(self._open) >= MAX_DEPTH:
            self._text("...")
        else:
            self._open.add(id(value))
            self._compound(value)
            self._open.discard(id(value))
        return self

    def _text(self, text: str) -> None:
        self._sha.update(text.encode(errors="surrogatepass"))

    def _tensor(self, value: Any) -> None:
        import torch

        self._text(f"{value.dtype}{tuple(value.shape)}{value.layout}")
        if not value.is_meta and value.numel():
            plain = (value.detach() if value.layout is torch.strided else value.detach().to_dense()).cpu()
            self._sha.update(memoryview(plain.contiguous().reshape(-1).view(torch.uint8).numpy()))

    def _array(self, value: Any) -> None:
        self._text(f"{value.dtype}{value.shape}")
        # An array of objects holds addresses, which differ in each process.
        self.feed(value.tolist()) if value.dtype.hasobject else self._sha.update(value.tobytes())

    def _compound(self, value: Any) -> None:
        self._text(f"{type(value).__qualname__}(")
        if not (self._container(value) or self._program(value)):
            self._object(value)
        self._text(")")

    def _container(self, value: Any) -> bool:
        if isinstance(value, Mapping):
            for key, item in value.items():
                self.feed(key).feed(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.feed(item)
        elif isinstance(value, Set):  # in an order that is the same in every process
            for item in sorted(Digest(self._own).feed(item).hexdigest() for item in value):
                self._text(item)
        else:
            return False
        return True

    def _program(self, value: Any) -> bool:
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.CodeType):
            self._code(value, {})
        elif isinstance(value, _WRAPPERS):
            self.feed(value.__func__)
        elif isinstance(value, property):
            self.feed(value.fget)
        elif isinstance(value, functools.partial):
            self.feed(value.func).feed(value.args).feed(value.keywords)
        elif isinstance(value, (type, types.ModuleType)):
            self._text(value.__name__)
        elif hasattr(value, "__wrapped__"):
            self.feed(value.__wrapped__)
        else:
            return False
        return True

    def _object(self, value: Any) -> None:
        if hasattr(value, "named_parameters"):
            self.feed(dict(value.state_dict()))
        elif hasattr(value, "to_numpy"):
            self.feed(value.to_numpy())
        elif isinstance(value, PurePath):
            self._text(str(value))
        elif self._is_looked_into(value):
            self.feed({name: item for name, item in vars(value).items() if not name.startswith("__")})
        elif not hasattr(value, "__dict__") and " at 0x" not in (shown := repr(value)):
            self._text(shown)

    def _is_looked_into(self, value: Any) -> bool:
        kind = type(value)
        return hasattr(value, "__dict__") and (
            dataclasses.is_dataclass(value)
            or isinstance(value, (enum.Enum, types.SimpleNamespace))
            or kind.__module__ in self._own
            or kind.__module__.startswith("torch.utils.data")
        )

    def _function(self, function: types.FunctionType) -> None:
        self._code(function.__code__, function.__globals__)
        self.feed(function.__defaults__).feed(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                self.feed(cell.cell_contents)
            except ValueError:  # a name that is not bound yet
                self._text("unbound")

    def _code(self, code: types.CodeType, names: Mapping[str, Any]) -> None:
        self._sha.update(code.co_code)
        for constant in code.co_consts:
            self._code(constant, names) if isinstance(constant, types.CodeType) else self.feed(constant)
        for name in code.co_names:
            self._text(name)
            # Data at the top of a file is part of a metric that reads it; other code there is in its source.
            if hasattr(value := names.get(name), "shape") or isinstance(
                value, (*_PLAIN, list, tuple, dict, Set)
            ):
                self.feed(value)


def sources_of(names: Iterable[str]) -> list[str]:
    """Return the sources of modules and of the modules whose names they use, at any depth.

    Only files of the user's own: what is installed is known by its version. A module that is imported inside
    a function is not found.
    """
    waiting, found = list(names), dict[str, str]()
    while waiting:
        module = sys.modules.get(name := waiting.pop())
        file = getattr(module, "__file__", None)
        if name in found or not isinstance(file, str) or _is_installed(name, file):
            continue
        try:
            found[name] = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):  # an extension module
            continue
        for value in vars(module).values():
            if isinstance(value, types.ModuleType):
                waiting.append(value.__name__)
            elif isinstance(value, (type, types.FunctionType)):
                waiting.append(str(value.__module__))
    return sorted(found.values())


def _is_installed(name: str, file: str) -> bool:
    places = (sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    return name.partition(".")[0] == "autoprec" or any(Path(file).is_relative_to(place) for place in places)


def source_of(kind: type) -> str:
    """Return the source of the file that defines a class, or what can be had of it."""
    try:
        return Path(inspect.getfile(kind)).read_text(encoding="utf-8")
    except (OSError, TypeError, UnicodeDecodeError):
        try:
            return inspect.getsource(kind)
        except (OSError, TypeError):
            return kind.__qualname__
