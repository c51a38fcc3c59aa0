"""Arguments and outputs of a model taken apart into tensors and what holds them, and put together again.

A graph takes and gives tensors; a model takes and gives them in lists, dictionaries, dataclasses or objects
such as a key-value cache. What holds them is written down as a tuple of tokens in order of depth, cheap to
compare: it is computed at every call of a graph. It covers built-in containers, types registered with
`torch.utils._pytree`, and plain objects, by their attributes.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autoprec.errors import RuntimeRefusedError

Token = tuple[Any, ...]
Structure = tuple[Token, ...]
"""Tokens in order of depth; the first of each says what it is:

- `("tensor", dtype, rank)`
- `("constant", type, value)`
- `("list" | "tuple" | "dict" | "object" | "registered", type, names of the parts, ...)`, the parts follow; a
  dict's are its keys, strings or whole numbers
- `("same", place)`: the container at that place of the arguments, itself
"""

_PLAIN = (
    bool, int, float, str, types.NoneType, torch.dtype, torch.device, torch.Size, enum.Enum, type,
)  # fmt: skip
_BUILT_IN = {list: "list", tuple: "tuple", dict: "dict"}


@dataclass(frozen=True)
class _Spec:
    """How a registered type is put together; compared, and not hashed: contexts may hold lists."""

    spec: Any = field(hash=False)


def flatten(
    value: Any, known: Mapping[int, str] | None = None, what: str = "is called with"
) -> tuple[Structure, list[torch.Tensor]]:
    """Return the structure of a value, and its tensors in order.

    Args:
        value: The value.
        known: Containers that are not taken apart again: their `id` and their place; see `places`.
        what: What the model does with the value, for errors.

    Raises:
        RuntimeRefusedError: It holds what is no tensor, constant or container of those; names its place.
    """
    tokens: list[Token] = []
    tensors: list[torch.Tensor] = []
    _flatten(("",), (value,), known or {}, tokens, tensors, [], [], what)
    return tuple(tokens), tensors


def _flatten(
    keys: Sequence[str | int],
    parts: Sequence[Any],
    known: Mapping[int, str],
    tokens: list[Token],
    tensors: list[torch.Tensor],
    place: list[str],
    within: list[int],
    what: str,
) -> None:
    for key, part in zip(keys, parts, strict=True):
        kind: Any = type(part)
        if isinstance(part, torch.Tensor):
            tokens.append(("tensor", part.dtype, part.dim()))
            tensors.append(part)
        elif _is_plain(kind):
            tokens.append(("constant", kind, part))
        elif id(part) in known:
            tokens.append(("same", known[id(part)]))
        else:
            place.append(str(key))
            if id(part) in within:
                raise RuntimeRefusedError(f"{_joined(place)} holds itself; an exported graph takes no cycles")
            token, own = _parts(part, place, what)
            tokens.append(token)
            within.append(id(part))
            _flatten(token[2], own, known, tokens, tensors, place, within, what)
            within.pop()
            place.pop()


def _joined(place: Sequence[str]) -> str:
    return ".".join(name for name in place if name)


def places(value: Any, place: str = "") -> dict[int, str]:
    """Return the id of every container within a value, and where it is: `cache.layers.0`."""
    if isinstance(value, (torch.Tensor, *_PLAIN)):
        return {}
    token, parts = _parts(value, [place])
    found = {id(value): place} if place else {}
    for name, part in zip(token[2], parts, strict=True):
        found |= places(part, f"{place}.{name}".removeprefix("."))
    return found


def build(
    structure: Iterable[Token],
    tensors: Iterable[torch.Tensor],
    *,
    into: Any = None,
    given: Any = None,
) -> Any:
    """Put a value together.

    Args:
        structure: What `flatten` returned.
        tensors: Its tensors.
        into: A value of which the containers are to be used again: they are changed to hold what the
            structure says, so that whoever holds one of them sees it.
        given: The arguments that `same` speaks of.
    """
    return _build(1, iter(structure), iter(tensors), (into,), given)[0]


def names(structure: Structure) -> tuple[str, ...]:
    """Return the name of every tensor, from the names of what holds it: `cache.layers.0.keys`."""
    return tuple(place for place, token in walk(structure) if token[0] == "tensor")


def walk(structure: Structure) -> Iterator[tuple[str, Token]]:
    """Yield the place and the token of everything, in order."""
    waiting = [""]
    for token in structure:
        place = waiting.pop()
        yield place, token
        if token[0] not in ("tensor", "constant", "same"):
            waiting.extend(f"{place}.{name}".removeprefix(".") for name in reversed(token[2]))


def describe(structure: Structure) -> str:
    """Return the arguments of a call in words: `ids int64[2 dimensions], cache (DynamicCache), flag=True`."""
    words = []
    for place, token in walk(structure):
        if not place or "." in place:
            continue
        if token[0] == "tensor":
            words.append(f"{place} {str(token[1]).removeprefix('torch.')} of {token[2]} dimensions")
        elif token[0] == "constant":
            words.append(f"{place}={token[2]!r}")
        else:
            words.append(f"{place} ({token[1].__name__})")
    return ", ".join(words) or "no arguments"


def difference(one: Structure, other: Structure) -> str:
    """Return the first place where two structures differ, and what each has there; empty for equal ones."""
    mine, theirs = dict(walk(one)), dict(walk(other))
    for place in [*mine, *(place for place in theirs if place not in mine)]:
        if mine.get(place) != theirs.get(place):
            return f"{place or 'it'} is {_word(mine.get(place))} and not {_word(theirs.get(place))}"
    return ""


def _word(token: Token | None) -> str:
    if token is None:
        return "absent"
    if token[0] == "tensor":
        return f"a {str(token[1]).removeprefix('torch.')} tensor of {token[2]} dimensions"
    if token[0] == "constant":
        return repr(token[2])
    if token[0] == "same":
        return f"the argument {token[1]}"
    parts = len(token[2])
    return f"a {token[1].__name__} of {parts} part{'s' * (parts != 1)}"


def _parts(value: Any, place: Sequence[str], what: str = "is called with") -> tuple[Token, Sequence[Any]]:
    """Return the token of a container, and what it holds."""
    kind: Any = type(value)
    built_in = _BUILT_IN.get(kind)
    if built_in == "dict":
        if all(type(key) in (str, int) for key in value) and len({str(key) for key in value}) == len(value):
            return ("dict", dict, tuple(value)), list(value.values())
    elif built_in is not None:
        return (built_in, kind, _numbers(len(value))), value
    elif _is_plain_object(kind) and kind not in pytree.SUPPORTED_NODES:
        attributes = vars(value)
        return ("object", kind, tuple(attributes)), list(attributes.values())
    elif _is_slotted_dataclass(kind) and kind not in pytree.SUPPORTED_NODES:
        fields = tuple(each.name for each in dataclasses.fields(kind))
        return ("object", kind, fields), [getattr(value, name) for name in fields]
    else:
        parts, spec = pytree.tree_flatten(value, is_leaf=lambda part: part is not value)
        if not spec.is_leaf():
            return ("registered", kind, _part_names(value, len(parts)), _Spec(spec)), parts
    where = f"{_joined(place)}, " if _joined(place) else ""
    raise RuntimeRefusedError(
        f"the model {what} {where}a {kind.__name__}; an exported graph takes and gives tensors, "
        "constants, and lists, tuples, dictionaries by names or whole numbers and plain objects of them "
        "(register others with torch.utils._pytree.register_pytree_node)"
    )


@functools.lru_cache(maxsize=1024)
def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


@functools.cache
def _is_plain(kind: type) -> bool:
    return issubclass(kind, _PLAIN)


@functools.cache
def _is_plain_object(kind: type) -> bool:
    """Whether what an object holds is in its attributes, all of it."""
    if issubclass(kind, (torch.nn.Module, types.ModuleType, list, tuple, dict, set, frozenset)):
        return False
    own = [vars(base) for base in kind.__mro__ if base is not object]
    return bool(kind.__dictoffset__) and not any("__call__" in each or each.get("__slots__") for each in own)


@functools.cache
def _is_slotted_dataclass(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and not kind.__dictoffset__


def _part_names(value: Any, count: int) -> tuple[str, ...]:
    """Return the names of a registered type's parts: its keys where it tells them, else numbers."""
    try:
        found, _ = pytree.tree_flatten_with_path(value, is_leaf=lambda part: part is not value)
    except ValueError:  # registered without a way to tell its keys
        if isinstance(value, dict) and len(value) == count:
            return tuple(str(key) for key in value)
        return _numbers(count)
    return tuple(pytree.keystr(path).strip(".[]'") for path, _ in found)


def _build(
    count: int, tokens: Iterator[Token], tensors: Iterator[torch.Tensor], old: Sequence[Any], given: Any
) -> list[Any]:
    parts: list[Any] = []
    for index in range(count):
        token = next(tokens)
        kind = token[0]
        if kind == "tensor":
            parts.append(next(tensors))
        elif kind == "constant":
            parts.append(token[2])
        elif kind == "same":
            parts.append(functools.reduce(_part, token[1].split("."), given))
        else:
            into = old[index] if index < len(old) and type(old[index]) is token[1] else None
            held = () if into is None else _parts(into, ())[1]
            parts.append(_assemble(token, _build(len(token[2]), tokens, tensors, held, given), into))
    return parts


def _assemble(token: Token, parts: list[Any], into: Any) -> Any:
    kind, cls, keys = token[:3]
    if kind == "tuple":
        return tuple(parts)
    if kind == "list":
        if into is None:
            return parts
        into[:] = parts
        return into
    if kind == "dict":
        fresh = dict(zip(keys, parts, strict=True))
        if into is None:
            return fresh
        into.clear()
        into.update(fresh)
        return into
    if kind == "object":
        into = cls.__new__(cls) if into is None else into
        if _is_slotted_dataclass(cls):
            for key, part in zip(keys, parts, strict=True):
                object.__setattr__(into, key, part)  # it may be frozen
            return into
        held = vars(into)
        held.clear()
        held.update(zip(keys, parts, strict=True))
        return into
    made = pytree.tree_unflatten(parts, token[3].spec)
    if into is None or isinstance(into, tuple):
        return made
    if isinstance(into, (dict, list)) or not hasattr(into, "__dict__"):
        raise RuntimeRefusedError(f"a {cls.__name__} that the model changes cannot be changed by its graph")
    # The caller's own object takes over what the new one holds.
    vars(into).clear()
    vars(into).update(vars(made))
    return into


def _part(value: Any, name: str) -> Any:
    token, parts = _parts(value, (name,))
    return parts[[str(key) for key in token[2]].index(name)]
