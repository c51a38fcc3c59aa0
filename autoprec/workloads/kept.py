"""Values that a workload makes once and keeps."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any


class Kept:
    """Values made when first asked for.

    An object of its own, because a workload's digest covers its attributes by content. These follow from
    its weights and text, but their last bits depend on the number of threads, and a tokeniser's settings on
    how it was used last.
    """

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the value of a key, made by `make` the first time."""
        if key not in self._values:
            self._values[key] = make()
        return self._values[key]
