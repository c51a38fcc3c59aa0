"""Start-up: how long `import autoprec` and `autoprec --help` take, best of ten fresh processes."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.common import save, table

COMMANDS = {
    "import autoprec": ["-c", "import autoprec"],
    "autoprec --help": ["-m", "autoprec", "--help"],
}
RUNS = 10


def main() -> None:
    """Measure and print."""
    bare = _best(["-c", "pass"])
    rows = [
        {"command": name, "seconds": round(_best(arguments), 3), "of which bare python": round(bare, 3)}
        for name, arguments in COMMANDS.items()
    ]
    table("Start-up", rows)
    save("startup", rows)


def _best(arguments: list[str]) -> float:
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return min(times)


if __name__ == "__main__":
    main()
