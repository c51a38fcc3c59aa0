"""What the benchmarks share: tables, and results as JSON with where they were measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from autoprec.kernels.device import capability, device_name

RESULTS = Path(__file__).parent / "results"


def table(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows, which have the same keys."""
    shown = Table(*rows[0], title=title, title_justify="left")
    for row in rows:
        shown.add_row(*(str(value) for value in row.values()))
    Console(width=160).print(shown)


def save(name: str, rows: Any) -> None:
    """Keep a result beside the benchmarks, with the machine and the time."""
    RESULTS.mkdir(exist_ok=True)
    where = {
        "device": device_name(),
        "capability": capability(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    text = json.dumps({"where": where, "rows": rows}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
