"""JSON that says what it means: finite numbers, and every key once."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable
from typing import Any, NoReturn


def parse(text: str) -> Any:
    """Return what JSON text holds.

    Raises:
        ValueError: It is not JSON, or holds NaN, infinity or a key twice.
        RecursionError: It is nested too deeply.
    """
    return json.loads(
        text,
        parse_constant=_refuse_constant,
        parse_float=_finite_float,
        object_pairs_hook=_distinct_keys,
    )


def refuse_repeats(what: str, names: Iterable[str]) -> None:
    """Check that no name appears twice.

    Raises:
        ValueError: One does; `what` says what they name.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} {reprlib.repr(name)} appears twice")
        seen.add(name)


def _refuse_constant(token: str) -> NoReturn:
    raise ValueError(f"{token} is not a finite number")


def _finite_float(token: str) -> float:
    value = float(token)
    if not math.isfinite(value):
        raise ValueError(f"{reprlib.repr(token)} is not a finite number")
    return value


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    refuse_repeats("key", (key for key, _ in pairs))
    return dict(pairs)
