"""Check the kernels on this machine's GPU, time them against torch, and write a device profile.

    python benchmarks/kernels/run.py --out DIRECTORY

Exit code: 0, or 1 where a check is wrong or the GPU failed, or 2 where there is no GPU or an option cannot be
used.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_MINUTES = 7.0


def main(arguments: list[str] | None = None) -> int:
    """Run what the options ask for (those of the command line by default), and return the exit code."""
    sys.path.insert(0, str(ROOT))  # a checkout is enough: nothing need be installed
    try:
        import torch
        import triton
    except ModuleNotFoundError as error:
        return _refuse(f"{error.name} is not installed; this script needs torch and triton")
    from autoprec.kernels.jit.compiling import OPERATIONS
    from benchmarks.kernels.session import Session

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("kernel-benchmark"), help="directory of the files")
    parser.add_argument(
        "--minutes", type=float, default=DEFAULT_MINUTES,
        help=f"no timing begins later than this ({DEFAULT_MINUTES:g})",
    )  # fmt: skip
    parser.add_argument("--only", action="append", metavar="OP", help=f"of {', '.join(OPERATIONS)}")
    parser.add_argument("--check-only", action="store_true", help="compare with the references, time nothing")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.only or () if name not in OPERATIONS]:
        return _refuse(f"--only is {unknown[0]!r}; give one of {', '.join(OPERATIONS)}")
    if not 0 < asked.minutes < float("inf"):
        return _refuse(f"--minutes is {asked.minutes:g}; give a number above zero")
    interpreted = bool(triton.knobs.runtime.interpret)
    if interpreted and not asked.check_only:
        return _refuse("emulated formats never report a speed: give --check-only, or unset TRITON_INTERPRET")
    if not interpreted and not torch.cuda.is_available():
        return _refuse("torch finds no GPU here; with TRITON_INTERPRET=1, --check-only runs without one")
    try:
        asked.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return _refuse(f"--out is {str(asked.out)!r}, which cannot be made: {error.strerror}")
    operations = tuple(name for name in OPERATIONS if not asked.only or name in asked.only)
    session = Session(torch.device("cpu" if interpreted else "cuda"), operations, asked.out, asked.minutes)
    return session.run(check_only=asked.check_only)


def _refuse(reason: str) -> int:
    sys.stderr.write(f"run.py: {reason}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
