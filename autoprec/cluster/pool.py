"""The stations of one job on a Ray cluster: one on each device, replaced where one dies or hangs."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from autoprec.cluster.options import StationOrder
from autoprec.cluster.remote_station import RemoteStation
from autoprec.envs.profile import Profiled
from autoprec.envs.space import Goal
from autoprec.errors import AutoPrecError, SettingError
from autoprec.execute import RunRequest, failed_run
from autoprec.facts import Facts
from autoprec.fresh import plan_cost
from autoprec.plan import Plan
from autoprec.profiling import ToProfile
from autoprec.station import StationLostError
from autoprec.store.records import Context, Run

PROFILE_SECONDS = 3600.0
"""Longest that a profile, or making a workload ready, may take before its station is taken to hang."""
PAUSE = 1.0
"""Seconds between two looks for a device."""
STARTS = 3
"""A station whose process died this often before it was ready is not tried again."""


class StationsClosedError(AutoPrecError):
    """The job ends, and its stations with it."""


@dataclass
class Slot:
    """A place on a device for one station.

    Attributes:
        node: Ray's id of the node.
        place: The node's name, for people.
        threads: Threads of its station; 0 for a GPU.
        actor: The station; `None` where there is none now.
    """

    node: str
    place: str
    threads: int
    actor: Any = None


class StationPool:
    """Measures on the devices of a cluster; `Measuring` for a search. Thread-safe.

    The first device that is ready decides the kind; devices of another kind, or on which the workload turns
    out differently, are left to other jobs: figures of two kinds are never mixed.

    Args:
        order: What to measure; its threads are set by the slot.
        gpu: Use GPUs; otherwise the CPUs of nodes.
        threads: Threads of a station on a CPU, of which a node takes as many as fit; by default all cores of
            the node make one station.
        most: Most stations.
        device: Part of the name of the device to use; the first that is ready by default.
        run_seconds: Longest that one run may take before it is stopped and counts as failed.
        note: Hears what the user should know.
        phase: Hears what is waited for.
        launch: Starts the process of a station; by default an actor on the slot's node.

    Attributes:
        waited: Seconds until the first device was free.

    Raises:
        SettingError: No node can ever hold such a station.
        UserError: The workload cannot be used.
    """

    def __init__(
        self,
        order: StationOrder,
        *,
        gpu: bool,
        threads: int | None,
        most: int | None,
        device: str | None,
        run_seconds: float,
        note: Callable[[str], None],
        phase: Callable[[str], None],
        launch: Callable[[StationOrder, Slot], Any] | None = None,
    ) -> None:
        self._order = order
        self._launch = launch or self._launch_there
        self._gpu = gpu
        self._device = device
        self._run_seconds = run_seconds
        self._note = note
        self._idle: queue.Queue[Slot] = queue.Queue()
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)
        self._facts: Facts | None = None
        self._failure: BaseException | None = None
        self._closed = False
        self._slots = _slots(gpu, threads)[:most]
        if not self._slots:
            wanted = "a GPU" if gpu else f"{threads or 1} free CPUs"
            raise SettingError(f"no node of the cluster has {wanted}: a station cannot be placed anywhere")
        phase("waiting for a device")
        self._asked = time.perf_counter()
        self.waited = 0.0
        for slot in self._slots:
            threading.Thread(target=self._bring_up, args=(slot,), daemon=True, name="station").start()
        with self._ready:
            self._ready.wait_for(lambda: self._facts is not None or self._failure is not None)
            if self._facts is None:
                assert self._failure is not None
                raise self._failure

    @property
    def facts(self) -> Facts:
        """The workload, made ready."""
        assert self._facts is not None, "the constructor waits for it"
        return self._facts

    @property
    def slots(self) -> int:
        """How many plans are measured at once, when every device is free."""
        with self._lock:
            return max(1, len(self._slots))

    @property
    def idle(self) -> int:
        """How many stations wait for work now."""
        return self._idle.qsize()

    def profile(self, wanted: ToProfile) -> tuple[Context, Profiled, list[str]]:
        """See `Measuring`. A station that dies meanwhile is replaced, and the profile made again."""
        while True:
            with self._station() as slot:
                try:
                    context, profiled, late, notes = self._call(slot, "profile", PROFILE_SECONDS, wanted)
                except (StationLostError, GetTimeoutError) as error:
                    # The pass that was begun is counted in the store, and left out after two.
                    self._note(f"profiling is begun again: {error}")
                    continue
            for text in notes:
                self._note(text)
            return context, profiled, late

    def run(self, request: RunRequest) -> Run:
        """See `Measuring`.

        Raises:
            StationLostError: The station died; the run may be begun again on another.
        """
        with self._station() as slot:
            started = time.perf_counter()
            try:
                run: Run = self._call(slot, "run", self._run_seconds, request)
            except GetTimeoutError:
                reason = f"it did not end within {self._run_seconds:.0f} s and was stopped"
                return failed_run(request, reason, time.perf_counter() - started)
            return run

    def fastest(self, plans: Mapping[str, Plan], goal: Goal, seconds: float) -> tuple[str, list[str]]:
        """See `Measuring`."""
        with self._station() as slot:
            try:
                found: tuple[str, list[str]] = self._call(
                    slot, "fastest", PROFILE_SECONDS, dict(plans), goal, seconds
                )
            except (StationLostError, GetTimeoutError) as error:
                leader = min(plans, key=lambda name: plan_cost(plans[name], goal))
                return leader, [f"the runtimes could not be timed against each other: {error}"]
            return found

    def write_artefacts(self, plan: Plan, folder: Path) -> tuple[tuple[Path, ...], str]:
        """Write nothing: the files would lie on the node."""
        return (), ""

    def close(self) -> None:
        """End every station, whatever it does."""
        with self._lock:
            self._closed = True
            actors = [slot.actor for slot in self._slots if slot.actor is not None]
        for actor in actors:
            ray.kill(actor)

    @contextlib.contextmanager
    def _station(self) -> Iterator[Slot]:
        """Hold an idle station while the body runs; one that was lost in it is replaced.

        Raises:
            StationsClosedError: The job ends.
        """
        slot = None
        while slot is None:
            if self._closed:
                raise StationsClosedError("the job ends")
            with contextlib.suppress(queue.Empty):
                slot = self._idle.get(timeout=PAUSE)
        try:
            yield slot
        finally:
            if slot.actor is not None:
                self._idle.put(slot)
            elif not self._closed:
                threading.Thread(target=self._bring_up, args=(slot,), daemon=True, name="station").start()

    def _call(self, slot: Slot, method: str, seconds: float | None, *arguments: object) -> Any:
        """Call a station. One that hangs or dies is gone after, and its slot without one.

        Raises:
            StationLostError: It died.
            GetTimeoutError: It hung; its process was killed.
        """
        try:
            return ray.get(getattr(slot.actor, method).remote(*arguments), timeout=seconds)
        except RayTaskError as error:
            raise error.cause from None
        except GetTimeoutError:
            ray.kill(slot.actor)
            slot.actor = None
            raise
        except RayActorError as error:
            slot.actor = None
            if self._closed:
                raise StationsClosedError("the job ends") from error
            raise StationLostError(f"the station on {slot.place} died") from error

    def _bring_up(self, slot: Slot) -> None:
        """Start a station in a slot and let it join, or give the slot up; the first failure of all counts."""
        try:
            for attempt in itertools.count(1):
                if self._closed:
                    return
                if not _is_alive(slot.node):
                    self._give_up(slot, f"{slot.place} is gone")
                    return
                order = replace(self._order, threads=slot.threads)
                slot.actor = self._launch(order, slot)
                try:
                    self._call(slot, "pid", None)  # however long another job has the device
                    with self._lock:
                        self.waited = self.waited or time.perf_counter() - self._asked
                    self._join(slot, self._call(slot, "start", PROFILE_SECONDS))
                    return
                except StationLostError:
                    if attempt == STARTS and _is_alive(slot.node):
                        raise
                    time.sleep(PAUSE)
        except BaseException as error:
            if slot.actor is not None:
                ray.kill(slot.actor)
                slot.actor = None
            if not self._closed:
                self._give_up(slot, str(error), error)

    def _launch_there(self, order: StationOrder, slot: Slot) -> Any:
        options: dict[str, Any] = {"num_gpus": 1, "num_cpus": 0} if self._gpu else {"num_cpus": slot.threads}
        placed = NodeAffinitySchedulingStrategy(slot.node, soft=False)
        return (
            ray.remote(RemoteStation)
            .options(**options, scheduling_strategy=placed, max_restarts=0)
            .remote(order)
        )

    def _join(self, slot: Slot, facts: Facts) -> None:
        device = facts.context.device
        with self._ready:
            if self._device is not None and self._device.lower() not in device.name.lower():
                misfit = f"its device is {device.name!r}, and {self._device!r} was asked for"
            elif self._facts is not None and facts.context.key != self._facts.context.key:
                misfit = _difference(self._facts.context, facts.context)
            else:
                misfit = ""
                self._facts = self._facts or facts
                self._idle.put(slot)
                self._ready.notify_all()
        if misfit:
            ray.kill(slot.actor)
            slot.actor = None
            self._give_up(slot, f"{slot.place} is left to other jobs: {misfit}")

    def _give_up(self, slot: Slot, reason: str, error: BaseException | None = None) -> None:
        """Do without a slot. With the last one goes the job, where none was ever ready."""
        with self._ready:
            self._slots = [other for other in self._slots if other is not slot]
            if not self._slots and self._facts is None:
                self._failure = error or SettingError(f"no device can be used: {reason}")
            self._ready.notify_all()
            alone = not self._slots
        self._note(reason)
        while alone and self._facts is not None and not self._closed:
            # Every device is gone: whatever comes back, or is new, goes on.
            time.sleep(PAUSE)
            found = _slots(self._gpu, slot.threads or None)
            if found:
                with self._lock:
                    self._slots = found[:1]
                self._bring_up(found[0])
                return


def _slots(gpu: bool, threads: int | None) -> list[Slot]:
    """Return the places for stations that the nodes of the cluster have, one of each node first."""
    by_node: list[list[Slot]] = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        has = node["Resources"]
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        if gpu:
            count, each = int(has.get("GPU", 0)), 0
        else:
            cores = int(has.get("CPU", 0))
            each = threads or cores
            count = cores // each if each else 0
        by_node.append([Slot(node["NodeID"], name, each) for _ in range(count)])
    deepest = max((len(slots) for slots in by_node), default=0)
    return [slots[rank] for rank in range(deepest) for slots in by_node if rank < len(slots)]


def _is_alive(node: str) -> bool:
    try:
        return any(each["NodeID"] == node and each["Alive"] for each in ray.nodes())
    except RayError:
        return True  # the head does not answer now; a station that cannot start says so


def _difference(ours: Context, theirs: Context) -> str:
    """Say in what two contexts differ."""
    for what, mine, other in (
        ("device", ours.device.name, theirs.device.name),
        ("capability", ours.device.capability, theirs.device.capability),
        ("threads", ours.device.threads, theirs.device.threads),
        ("versions", ours.device.versions, theirs.device.versions),
        ("architecture", ours.architecture, theirs.architecture),
    ):
        if mine != other:
            return f"its {what} is {other!r}, and this job measures on {mine!r}"
    return "the workload turns out differently there (weights, data or quality)"
