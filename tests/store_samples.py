"""Small valid records for tests of the store and of what stands on it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from autoprec.device_profile import DeviceProfile, Layer, ProfiledDevice, Ratio
from autoprec.plan import Device, Evidence, Interval, ModulePlan, Plan, Quality, UnitPlan
from autoprec.store.records import Context, Job, Run


def make_context(fingerprint: str = "f1", **changes: Any) -> Context:
    device = Device(name="cpu-1", capability="AVX2", runtime="eager", threads=2, versions={"torch": "2.13.0"})
    values: dict[str, Any] = {
        "workload": "minilm",
        "fingerprint": fingerprint,
        "architecture": "a1",
        "purpose": "latency",
        "shapes": ("int64 1x16",),
        "device": device.model_copy(update=changes.pop("device", {})),
    }
    return Context(**(values | changes))


def make_job(job_id: str = "j1", **changes: Any) -> Job:
    values: dict[str, Any] = {
        "id": job_id,
        "workload": "minilm",
        "settings": {"budget": 200, "formats": ["fp32", "int8_dynamic"], "max_memory": None},
        "settings_key": "s1",
    }
    return Job(**(values | changes))


def make_run(plan_key: str = "p1", **changes: Any) -> Run:
    values: dict[str, Any] = {
        "plan_key": plan_key,
        "formats": ("fp32", "int8_dynamic"),
        "status": "ok",
        "searcher": "ilp",
        "baseline_seconds": 0.1,
        "plan_seconds": 0.05,
        "speedup": 2.0,
        "speedup_low": 1.9,
        "speedup_high": 2.1,
        "over_lossless": 1.5,
        "over_lossless_low": 1.4,
        "over_lossless_high": 1.6,
        "pairs": 20,
        "held_bytes": 2**33,
        "quality": 0.99,
        "quality_drop": 0.01,
        "reported": {"spearman": 0.8},
        "wall_seconds": 3.5,
    }
    return Run(**(values | changes))


def make_plan(
    implementation: str = "fbgemm", *, speedup: float = 2.0, plan_bytes: int = 1000, drop: float = 0.01,
    measured: bool = True,
) -> Plan:  # fmt: skip
    module = ModulePlan(path="encoder.0", operation="linear", implementation=implementation)
    device = make_context().device
    evidence = Evidence(
        workload="minilm",
        fingerprint="f1",
        weights="w1",
        objective="latency",
        max_quality_drop=None,
        baseline_ms=10.0,
        plan_ms=10.0 / speedup,
        speedup=Interval(value=speedup, low=speedup - 0.1, high=speedup + 0.1),
        speedup_over_lossless=None,
        baseline_bytes=4000,
        plan_bytes=plan_bytes,
        quality=Quality(metric="accuracy", split="final", baseline=0.9, plan=0.9 - drop, drop=drop),
        shapes=("int64 1x16",),
        device=device,
        searcher="ilp",
        measured_runs=10,
        pairs=20,
        measured_at="2026-01-01T00:00:00+00:00",
    )
    unit = UnitPlan(name="encoder.0", format="int8_dynamic", modules=(module,))
    return Plan(architecture="a1", units=(unit,), evidence=evidence if measured else None)


def make_device_profile(name: str = "NVIDIA H200", **changes: Any) -> DeviceProfile:
    values: dict[str, Any] = {
        "schema": "autoprec.device-profile/1",
        "device": ProfiledDevice(name=name, capability="sm_90", driver="570.1", versions={"torch": "2.11.0"}),
        "measured_at": datetime(2026, 1, 1, tzinfo=UTC),
        "method": "by hand",
        "ceilings": {"copy": 4e12, "bf16": 7e14},
        "layers": (
            Layer(format="bf16", implementation="torch", rows=1, inputs=4096, outputs=6144, seconds=2e-5,
                  over_bf16=None),
            Layer(format="fp8_e4m3", implementation="triton", rows=1, inputs=4096, outputs=6144,
                  seconds=1.6e-5, over_bf16=Ratio(value=1.25, low=1.2, high=1.3)),
        ),
    }  # fmt: skip
    return DeviceProfile(**(values | changes))
