"""AutoPrec finds which numeric format each layer of a PyTorch model should run in, by measuring it.

Importing this package is light: each name below is loaded when it is first used.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# No telemetry: Ray reads this when it starts, and a user's own setting stands.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

if TYPE_CHECKING:
    from autoprec.api import best_plan, check, plans, predict_plan, tune
    from autoprec.apply import Applied, apply_plan
    from autoprec.cluster.handle import SubmittedJob
    from autoprec.cluster.submitting import submit
    from autoprec.errors import AutoPrecError, UserError
    from autoprec.plan import Plan
    from autoprec.result import TuneResult
    from autoprec.slices import slice_indices
    from autoprec.workload import Example, Workload, define_workload

__version__ = "0.1.0"

_HOME = {
    "Applied": "autoprec.apply",
    "AutoPrecError": "autoprec.errors",
    "Example": "autoprec.workload",
    "Plan": "autoprec.plan",
    "SubmittedJob": "autoprec.cluster.handle",
    "TuneResult": "autoprec.result",
    "UserError": "autoprec.errors",
    "Workload": "autoprec.workload",
    "apply_plan": "autoprec.apply",
    "best_plan": "autoprec.api",
    "check": "autoprec.api",
    "define_workload": "autoprec.workload",
    "plans": "autoprec.api",
    "predict_plan": "autoprec.api",
    "slice_indices": "autoprec.slices",
    "submit": "autoprec.cluster.submitting",
    "tune": "autoprec.api",
}

__all__ = [
    "Applied",
    "AutoPrecError",
    "Example",
    "Plan",
    "SubmittedJob",
    "TuneResult",
    "UserError",
    "Workload",
    "apply_plan",
    "best_plan",
    "check",
    "define_workload",
    "plans",
    "predict_plan",
    "slice_indices",
    "submit",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'autoprec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
