"""One case of `benchmarks.tuning`, in a process of its own: prints its figures as a line of JSON."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

from autoprec.api import tune
from autoprec.plan import Plan


def main() -> None:
    """Tune the case that the arguments name."""
    case, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    result = tune(**case, out=folder)
    spent = result.spending
    figures: dict[str, Any] = {
        "best": describe(result.best),
        "lossless": describe(result.lossless),
        "bound": describe(result.bound),
        "runs": len(result.trials),
        "failed": len(result.failures),
        "not measuring": f"{spent.overhead:.0%}",
        "profile s": round(spent.profile),
        "peak GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "notes": " ".join(result.notes),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


def describe(plan: Plan | None) -> str:
    """Return a plan's fresh figures in words."""
    if plan is None or plan.evidence is None:
        return "none"
    evidence = plan.evidence
    speedup, over = evidence.speedup, evidence.speedup_over_lossless
    text = f"{speedup.value:.3f}x [{speedup.low:.3f}, {speedup.high:.3f}]"
    if over is not None:
        text += f", over lossless {over.value:.3f}x [{over.low:.3f}, {over.high:.3f}]"
    smaller = evidence.baseline_bytes / evidence.plan_bytes
    return f"{text}, drop {evidence.quality.drop:.5f}, {smaller:.2f}x smaller, by {evidence.searcher}"


if __name__ == "__main__":
    main()
