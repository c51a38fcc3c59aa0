"""Run the benchmarks: all of them, or those named."""

from __future__ import annotations

import importlib
import sys

NAMES = ("startup", "tuning", "memory")


def main() -> None:
    """Run what the arguments name, in order."""
    names = sys.argv[1:] or list(NAMES)
    if {"-h", "--help"} & set(names):
        sys.exit(f"usage: python -m benchmarks [{' | '.join(NAMES)}] ...  (all of them where none is named)")
    if unknown := [name for name in names if name not in NAMES]:
        sys.exit(f"unknown benchmark {unknown[0]!r}; known: {', '.join(NAMES)}")
    for name in names:
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
