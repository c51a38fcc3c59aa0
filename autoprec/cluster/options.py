"""What a job on a cluster is asked for beside the options of `autoprec tune`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from autoprec.envs.space import purpose_of
from autoprec.errors import SettingError
from autoprec.settings import TuneSettings
from autoprec.store.records import Job


@dataclass(frozen=True)
class StationOrder:
    """What a station is to measure.

    Attributes:
        job_id: The job.
        workload: Reference of the workload, as it can be loaded there.
        purpose: Which example inputs are timed.
        groups: See `discover`.
        exclude: The same.
        threads: Threads that compute, one on each core that the station holds; 0 for a GPU, which holds none.
    """

    job_id: str
    workload: str
    purpose: Literal["latency", "throughput"]
    groups: tuple[str, ...]
    exclude: tuple[str, ...]
    threads: int


class ClusterOptions(BaseModel):
    """The options of one job. They are kept beside its settings, so that it can be resumed.

    Attributes:
        settings: The options of `autoprec tune`, as `TuneSettings` keeps them; the workload as it is named on
            the cluster.
        folder: Directory whose files travel, on the machine that submitted; `None` where none do.
        gpu: Measure on GPUs; otherwise on the CPUs of nodes.
        threads: Threads of a station on a CPU; by default all cores of its node.
        stations: Most devices that are used at once; by default all of one kind.
        device: Part of the name of the device to measure on; by default the kind that is ready first.
        run_seconds: Longest that one run may take.
        python: The interpreter on the cluster.
    """

    settings: dict[str, Any]
    folder: str | None = None
    gpu: bool = False
    threads: int | None = None
    stations: int | None = None
    device: str | None = None
    run_seconds: float = 600.0
    python: str = "python"

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def check(cls, **given: Any) -> ClusterOptions:
        """Return the options.

        Raises:
            SettingError: One cannot be used; names it, the value and what to do.
        """
        for name in ("threads", "stations"):
            value = given.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise SettingError(f"{name} is {value!r}; give a whole number above 0, or leave it out")
        seconds = given.get("run_seconds", 600.0)
        if not isinstance(seconds, (int, float)) or not 0 < seconds < 1e7:
            raise SettingError(f"run_seconds is {seconds!r}; give seconds above 0")
        if not re.fullmatch(r"[\w./+-]+", given.get("python", "python")):
            raise SettingError(f"python is {given['python']!r}; give the path of an interpreter there")
        return cls(**given)

    @classmethod
    def of(cls, job: Job) -> ClusterOptions:
        """Return the options that a job was submitted with.

        Raises:
            SettingError: It was not submitted to a cluster.
        """
        kept = job.settings.get("cluster")
        if kept is None:
            raise SettingError(f"job {job.id} was not submitted to a cluster; resume it by tune --resume")
        settings = {name: value for name, value in job.settings.items() if name != "cluster"}
        return cls(settings=settings, **kept)

    def kept(self) -> dict[str, Any]:
        """Return what is kept beside a job's settings."""
        return {"cluster": self.model_dump(mode="json", exclude={"settings"})}

    def order(self, job_id: str, settings: TuneSettings) -> StationOrder:
        """Return what its stations are to measure."""
        return StationOrder(
            job_id=job_id,
            workload=settings.workload,
            purpose=purpose_of(settings.objective),
            groups=settings.groups,
            exclude=settings.exclude,
            threads=0,
        )
