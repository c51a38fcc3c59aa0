"""A fixed part of the evaluation data, for a `quality` that offers cheap estimates."""

from __future__ import annotations

import math
import random

from autoprec.errors import WorkloadError


def slice_indices(count: int, share: float) -> list[int]:
    """Return which of `count` items a share of the data is, in order.

    The choice is drawn with a fixed seed: the same in every process and for every model. Slices are nested: a
    smaller one is part of every larger one.

    Args:
        count: How many items there are.
        share: Above 0 and at most 1; at least one item is chosen where there is any.

    Raises:
        WorkloadError: The share is out of range.
    """
    if not 0 < share <= 1:
        raise WorkloadError(
            f"share is {share!r}; it must be a number above 0 and at most 1 (1: all of the data)"
        )
    # Whose random() is the same on every platform and in every version.
    draw = random.Random(0)  # noqa: S311  (no secret)
    ranked = sorted(range(count), key=lambda _: draw.random())
    return sorted(ranked[: math.ceil(share * count)])
