import os
import platform
import subprocess
import sys

import pytest
import torch

from autoprec.kernels.device import capability, cpu_flags, device_name


def test_names_are_stable_and_printable():
    assert device_name() == device_name(torch.device("cpu"))
    assert device_name().strip()
    assert capability().strip()
    assert capability(torch.device("meta")) == "meta"
    assert device_name(torch.device("meta")) == "meta"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="flags of x86")
def test_capability_agrees_with_torch():
    if torch.cpu._is_avx512_supported() and torch.cpu._is_vnni_supported():
        assert "VNNI" in capability()
    if torch.cpu._is_avx512_bf16_supported():
        assert "BF16" in capability()
    assert ("avx2" in cpu_flags()) == torch.cpu._is_avx2_supported()


@pytest.mark.skipif(not torch.cpu._is_avx2_supported(), reason="needs AVX2")
def test_capability_follows_what_torch_was_told_to_use():
    program = "from autoprec.kernels.device import capability; print(capability())"
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2"}
    output = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() in ("AVX2", "AVX2_VNNI")
