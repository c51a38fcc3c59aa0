"""Files written in one step, so that a reader never sees half of one."""

from __future__ import annotations

import tempfile
from pathlib import Path


def write_in_one_step(target: Path, content: bytes) -> None:
    """Write `content` beside `target` and put it in its place; on failure nothing is left behind.

    Raises:
        OSError: The file cannot be written.
        ValueError: The path cannot name a file.
    """
    part: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=target.name, delete=False) as file:
            part = Path(file.name)
            file.write(content)
        part.chmod(0o644)
        part.replace(target)
    except BaseException:
        if part is not None:
            part.unlink(missing_ok=True)
        raise
