"""Checks and digests of what goes into the store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, get_args

from safetensors import SafetensorError, deserialize

from autoprec.errors import StoreError


def digest_of(*parts: str) -> str:
    """Return a digest by which a record that is written again is known."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def checked_json(value: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a value as reading it back will give it.

    Raises:
        StoreError: It is not JSON, or holds NaN or infinity. `what` names it.
    """
    try:
        checked: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(
            f"{what} cannot be kept as JSON ({error}); "
            "use text, lists, dicts and finite numbers, and None for NaN"
        ) from error
    return checked


def one_of(argument: str, value: str, choices: Any) -> str:
    """Return the value if it is one of a `Literal`'s.

    Raises:
        StoreError: It is not.
    """
    if value not in get_args(choices):
        raise StoreError(f"{argument} is {value!r}; use one of {', '.join(get_args(choices))}")
    return value


def check_safetensors(weights: bytes, name: str) -> None:
    """Check that a policy's bytes are safetensors, which hold numbers and never code.

    Raises:
        StoreError: Header, dtypes, shapes or offsets are not those of such a file.
    """
    try:
        deserialize(weights)  # type: ignore[no-untyped-call]
    except (SafetensorError, TypeError) as error:
        raise StoreError(
            f"weights of policy {name!r} are not a safetensors file ({error}); "
            "write them with safetensors.save"
        ) from error
