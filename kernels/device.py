"""What this machine's processor or accelerator is, and what its kernels are chosen by."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch
from torch import nn

CPU = torch.device("cpu")


def device_name(device: torch.device = CPU) -> str:
    """Return the processor or accelerator as the operating system names it, for example `AMD EPYC 9B14`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    return _cpu_info().get("model name") or platform.processor() or platform.machine() or "unknown processor"


def capability(device: torch.device = CPU) -> str:
    """Return what kernels are chosen by on a device.

    For a CPU its vector instructions as torch uses them (`ATEN_CPU_CAPABILITY` counts) and the extensions
    that speed up low precision, for example `AVX512_VNNI+BF16` or `AVX2`; for CUDA the architecture,
    `sm_90`; for AMD `gfx942`.
    """
    if device.type == "cuda":
        if torch.version.hip:
            # AMD numbers its capabilities as NVIDIA does, and they mean something else. In
            # `gfx942:sramecc+:xnack-`, what follows the architecture is how it is set up.
            return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
        major, minor = torch.cuda.get_device_capability(device)
        return f"sm_{major}{minor}"
    if device.type != "cpu":
        return device.type
    base = torch.backends.cpu.get_cpu_capability()
    flags = cpu_flags()
    wide = base.startswith("AVX512") or base == "AMX"
    if wide and "avx512_vnni" in flags:
        base = f"{base}_VNNI"
    elif base == "AVX2" and "avx_vnni" in flags:
        base = "AVX2_VNNI"
    extras = {"avx512_bf16": "BF16", "avx512_fp16": "FP16", "amx_int8": "AMX_INT8", "amx_bf16": "AMX_BF16"}
    return "+".join([base, *(name for flag, name in extras.items() if wide and flag in flags)])


def devices_of(model: nn.Module) -> list[torch.device]:
    """Return where a model's parameters and buffers lie, the first parameter's first; the CPU for none."""
    return list(dict.fromkeys(each.device for each in (*model.parameters(), *model.buffers()))) or [CPU]


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the processor's feature flags as Linux names them; empty where they are not known."""
    info = _cpu_info()
    return frozenset((info.get("flags") or info.get("Features") or "").split())


@functools.cache
def _cpu_info() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
