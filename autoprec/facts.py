"""What a search has to know of a workload that was made ready: everything but its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoprec.envs.units import Discovery
from autoprec.prepare import Prepared
from autoprec.store.records import Context
from autoprec.workload import Split


@dataclass(frozen=True)
class Facts:
    """What there is to know of a workload that was made ready, without its model.

    Attributes:
        workload: Its reference.
        context: What its figures hold for, in eager PyTorch.
        weights: Fingerprint of its weights.
        discovery: Its units.
        baseline_bytes: Bytes that the model as it came holds.
        quality_name: What quality means.
        quality: Quality of the model as it came, by part of the data; the last part judges winners.
        reported: Further metrics of the model as it came, on the last part.
        has_quality: Whether the workload judges quality itself; otherwise it is fidelity.
        has_slices: Whether it judges it on a share of the data, too.
        calibrated: Whether it gives calibration batches.
    """

    workload: str
    context: Context
    weights: str
    discovery: Discovery
    baseline_bytes: int
    quality_name: str
    quality: Mapping[Split, float]
    reported: Mapping[str, float]
    has_quality: bool
    has_slices: bool
    calibrated: bool

    @property
    def split(self) -> Split:
        """The part of the data that judges winners."""
        return tuple(self.quality)[-1]

    @property
    def least_quality(self) -> float:
        """Least magnitude of the baseline's quality on any part of the data: a share of it holds on all."""
        return min(abs(value) for value in self.quality.values())


def facts_of(prepared: Prepared) -> Facts:
    """Return what there is to know of a workload that was made ready."""
    measurer, loaded = prepared.measurer, prepared.loaded
    return Facts(
        workload=loaded.reference,
        context=prepared.context,
        weights=prepared.weights,
        discovery=prepared.discovery,
        baseline_bytes=measurer.baseline_bytes,
        quality_name=loaded.quality_name,
        quality={split: measurer.baseline_quality(split) for split in measurer.splits},
        reported=measurer.baseline_reported(measurer.splits[-1]),
        has_quality=loaded.has_quality,
        has_slices=loaded.has_slices,
        calibrated=bool(prepared.calibration),
    )
