"""Cores of this machine for one process alone, whoever else asks for some."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from autoprec.errors import UserError


class CoresTakenError(UserError):
    """Fewer cores are free here than were asked for."""


PAUSE = 1.0
"""Seconds between two tries to get cores that others hold."""


@contextmanager
def cores_held(count: int, *, patience: float = math.inf) -> Iterator[tuple[int, ...]]:
    """Pin this process, and what it starts, to cores that nobody else holds while the body runs.

    A core is held by a lock of the system, which falls with the process however that ends. Processes of any
    cluster of this user on this machine respect each other so.

    Args:
        count: How many cores; threads of computation run one on each.
        patience: Seconds to wait for cores that others hold.

    Yields:
        The numbers of the cores.

    Raises:
        CoresTakenError: There are fewer, or fewer came free.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if count > len(allowed):
        raise CoresTakenError(f"{count} cores were asked for, and this process may use {len(allowed)}")
    folder = Path(tempfile.gettempdir()) / f"autoprec-cores-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    until = time.monotonic() + patience
    with ExitStack() as stack:
        while len(held := _lock_free(stack, folder, allowed, count)) < count:
            stack.close()  # two who each hold half of what they need would wait for ever
            if time.monotonic() >= until:
                raise CoresTakenError(
                    f"{count} cores were asked for and {len(held)} of {len(allowed)} are free here: another "
                    "station measures on them; wait until it ends, or ask for fewer threads"
                )
            time.sleep(PAUSE)
        os.sched_setaffinity(0, held)
        try:
            yield tuple(held)
        finally:
            os.sched_setaffinity(0, allowed)


def _lock_free(stack: ExitStack, folder: Path, allowed: list[int], count: int) -> list[int]:
    """Hold as many cores as are free, at most `count`, until the stack is closed."""
    held: list[int] = []
    for core in allowed:
        if len(held) == count:
            break
        try:
            stack.enter_context(FileLock(folder / f"{core}.lock").acquire(timeout=0))
        except Timeout:
            continue
        held.append(core)
    return held
