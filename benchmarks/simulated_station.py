"""An actor that stands for many devices: each run takes a fixed time and no core."""

from __future__ import annotations

import os
import threading
import time

from autoprec.cluster.options import StationOrder
from autoprec.cluster.remote_station import RemoteStation
from autoprec.execute import RunRequest
from autoprec.facts import Facts
from autoprec.store.records import Run


class SimulatedStation(RemoteStation):
    """Prepares and profiles for real; runs are waited for.

    Args:
        order: What to measure.
        latency: Seconds that each run takes.
        store: URL of the store.
    """

    def __init__(self, order: StationOrder, latency: float, store: str) -> None:
        os.environ["AUTOPREC_STORE"] = store
        super().__init__(order)
        self._latency = latency
        self._lock = threading.Lock()
        self._facts: Facts | None = None

    def start(self) -> Facts:
        """Make the workload ready, once for all devices that this actor stands for."""
        with self._lock:
            if self._facts is None:
                self._facts = super().start()
            return self._facts

    def run(self, request: RunRequest) -> Run:
        """Wait, and give figures."""
        time.sleep(self._latency)
        held = sum({"fp32": 4, "bf16": 2}.get(unit.format, 2) for unit in request.plan.units)
        return Run(
            plan_key=request.plan.key,
            formats=tuple(unit.format for unit in request.plan.units),
            status="ok",
            searcher=request.searcher,
            baseline_seconds=1.0,
            plan_seconds=1.0,
            speedup=1.0,
            speedup_low=1.0,
            speedup_high=1.0,
            pairs=6,
            held_bytes=held,
            quality=1.0,
            quality_drop=0.0,
            wall_seconds=self._latency,
        )
