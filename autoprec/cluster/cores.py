"""Cores of this machine for one process alone, whoever else asks for some."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from autoprec.errors import UserError


class CoresTakenError(UserError):
    """Fewer cores are free here than were asked for."""


@contextmanager
def cores_held(count: int) -> Iterator[tuple[int, ...]]:
    """Pin this process, and what it starts, to cores that nobody else holds while the body runs.

    A core is held by a lock of the system, which falls with the process however that ends. Processes of any
    cluster and of any user who shares the directory for temporary files respect each other so.

    Args:
        count: How many cores; threads of computation run one on each.

    Yields:
        The numbers of the cores.

    Raises:
        CoresTakenError: Fewer are free.
    """
    allowed = sorted(os.sched_getaffinity(0))
    folder = Path(tempfile.gettempdir()) / f"autoprec-cores-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        held: list[int] = []
        for core in allowed:
            if len(held) == count:
                break
            lock = FileLock(folder / f"{core}.lock")
            try:
                stack.enter_context(lock.acquire(timeout=0))
            except Timeout:
                continue
            held.append(core)
        if len(held) < count:
            raise CoresTakenError(
                f"{count} cores were asked for and {len(held)} of {len(allowed)} are free here: another "
                "station measures on them; wait until it ends, or ask for fewer threads"
            )
        os.sched_setaffinity(0, held)
        try:
            yield tuple(held)
        finally:
            os.sched_setaffinity(0, allowed)
