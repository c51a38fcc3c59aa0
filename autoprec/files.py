"""Files written in one step, so that a reader never sees half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autoprec.errors import SettingError


def write_in_one_step(target: Path, content: bytes) -> None:
    """Write `content` beside `target` and put it in its place; on failure nothing is left behind.

    Raises:
        OSError: The file cannot be written.
        ValueError: The path cannot name a file.
    """
    with put_in_one_step(target) as part:
        part.write_bytes(content)


@contextmanager
def put_in_one_step(target: Path) -> Iterator[Path]:
    """Give a file beside `target` to write; it takes its place after the body, unless that raises.

    Raises:
        OSError: The file cannot be written.
        ValueError: The path cannot name a file.
    """
    part: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=target.name, delete=False) as file:
            part = Path(file.name)
        yield part
        part.chmod(0o644)
        part.replace(target)
    except BaseException:
        if part is not None:
            part.unlink(missing_ok=True)
        raise


def check_writable(*targets: Path) -> None:
    """Say before hours of work that a file could not be written after them.

    Raises:
        SettingError: One is a directory, or it or its directory cannot be written to.
    """
    for target in targets:
        if target.is_dir():
            raise SettingError(f"cannot write {str(target)!r}: it is a directory; name another place")
        if not os.access(target if target.exists() else target.parent, os.W_OK):
            raise SettingError(f"cannot write {str(target)!r}: no permission; name another place")
