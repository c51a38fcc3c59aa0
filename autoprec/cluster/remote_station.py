"""The process that measures on one device of a cluster. It holds the device as long as it lives."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

from autoprec.cluster.options import StationOrder
from autoprec.cluster.place import open_store
from autoprec.envs.profile import Profiled
from autoprec.envs.space import Goal
from autoprec.execute import RunRequest
from autoprec.facts import Facts
from autoprec.plan import Plan
from autoprec.profiling import ToProfile
from autoprec.store.records import Context, Run

TELLING_SECONDS = 1.0
"""Least time between two notes in the store on what a station does."""


class RemoteStation:
    """A `Station` in a process of its own; Ray makes an actor of it.

    Args:
        order: What to measure.
    """

    def __init__(self, order: StationOrder) -> None:
        self._order = order
        self._held = ExitStack()
        self._notes: list[str] = []
        self._told = 0.0

    def pid(self) -> int:
        """Return the number of this process."""
        return os.getpid()

    def start(self) -> Facts:
        """Hold the cores and make the workload ready.

        Raises:
            UserError: The workload cannot be used, or the store or the cores cannot be had.
        """
        import torch

        from autoprec.cluster.cores import cores_held
        from autoprec.prepare import prepare
        from autoprec.station import Station

        order = self._order
        if order.threads:
            self._held.enter_context(cores_held(order.threads))
            torch.set_num_threads(order.threads)
        self._store = self._held.enter_context(open_store())
        prepared = prepare(order.workload, order.purpose, order.groups, order.exclude)
        self._station = Station(prepared, self._store, order.job_id, self._phase, self._notes.append)
        return self._station.facts

    def profile(self, wanted: ToProfile) -> tuple[Context, Profiled, list[str], list[str]]:
        """Profile a runtime; return what `Station.profile` does, and notes for the user."""
        self._notes.clear()
        context, profiled, late = self._station.profile(wanted)
        return context, profiled, late, list(self._notes)

    def run(self, request: RunRequest) -> Run:
        """See `Station.run`."""
        return self._station.run(request)

    def fastest(self, plans: dict[str, Plan], goal: Goal, seconds: float) -> tuple[str, list[str]]:
        """See `Station.fastest`."""
        return self._station.fastest(plans, goal, seconds)

    def _phase(self, name: str, detail: str, share: float | None) -> None:
        now = time.monotonic()
        if now - self._told > TELLING_SECONDS:
            self._told = now
            done = "" if share is None else f" ({share:.0%})"
            self._store.update_job(self._order.job_id, phase=f"{name} {detail}{done}")
