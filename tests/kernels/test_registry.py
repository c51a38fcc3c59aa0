import ast
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from autoprec.errors import ConversionError
from autoprec.kernels import reference, registry
from autoprec.kernels.checked import static_shape
from autoprec.kernels.formats import FORMATS
from autoprec.kernels.modules import HeldWeight
from autoprec.kernels.registry import (
    Level,
    Operation,
    OpShape,
    Support,
    feasible,
    held_bytes,
    implementation,
    implementations,
    worst,
)

CPU = torch.device("cpu")


def run(program, **environment):
    """Return what a program prints in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-c", program]
    environment = {**os.environ, **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


GOOD = OpShape(Operation.LINEAR, 16, 128, 64, True)
ODD = OpShape(Operation.LINEAR, 1, 100, 63, True)


def test_feasible_answers_for_every_format():
    for operation in Operation:
        answer = feasible(operation, [OpShape(operation, 4, 64, 64, False)], CPU)
        assert list(answer) == list(FORMATS)
        assert answer["fp32"] == Support(Level.NATIVE)
        for support in answer.values():
            assert support.level is Level.NATIVE or support.reason


def test_feasible_takes_the_best_implementation_for_all_shapes():
    assert feasible(Operation.LINEAR, [GOOD, ODD], CPU)["int8_weight_only"].level is Level.NATIVE
    packed = implementation(Operation.LINEAR, "int8_weight_only", "int8pack")
    assert packed.support(GOOD, CPU).level is Level.NATIVE
    assert packed.support(ODD, CPU).level is Level.REFUSED


def test_fp8_is_emulated_and_says_so():
    answer = feasible(Operation.LINEAR, [GOOD], CPU)
    for name in ("fp8_e4m3", "fp8_e5m2", "fp8_block"):
        assert answer[name].level is Level.EMULATED
        assert "rounding" in answer[name].reason


def test_nothing_runs_on_a_device_without_kernels():
    answer = feasible(Operation.LINEAR, [GOOD], torch.device("meta"))
    assert {support.level for support in answer.values()} == {Level.REFUSED}


def test_stand_ins_are_offered_only_where_the_original_is_refused():
    answer = feasible(Operation.LINEAR, [GOOD], CPU)
    for name, fmt in FORMATS.items():
        if fmt.stands_in_for and answer[fmt.stands_in_for].level is Level.NATIVE:
            assert answer[name].level is Level.REFUSED
            assert fmt.stands_in_for in answer[name].reason
            # A plan that was made on an older processor still applies.
            kernel = implementations(Operation.LINEAR, name)[0]
            assert kernel.support(GOOD, CPU).level is Level.NATIVE


@pytest.mark.skipif(not torch.cpu._is_avx2_supported(), reason="needs an x86 processor with AVX2")
def test_kernels_that_saturate_without_vnni_are_refused():
    """oneDNN can be told to use no more than AVX2, on which it adds 8-bit products in 16 bits."""
    program = (
        "import torch\n"
        "from autoprec.kernels.registry import *\n"
        "shape = OpShape(Operation.CONV2D, 9, 16, 32, True, (3, 3))\n"
        "answer = feasible(Operation.CONV2D, [shape], torch.device('cpu'))\n"
        "print({name: (support.level.value, support.reason) for name, support in answer.items()})\n"
    )
    answer = ast.literal_eval(run(program, ONEDNN_MAX_CPU_ISA="AVX2"))
    for name in ("int8_dynamic", "int8_static"):
        assert answer[name][0] == "refused"
        assert "VNNI" in answer[name][1]
        assert answer[f"{name}_7bit"][0] == "native"


def test_unknown_implementation_names_the_known():
    with pytest.raises(ConversionError, match="known: aten, onednn_packed"):
        implementation(Operation.LINEAR, "fp32", "cublas")
    with pytest.raises(ConversionError, match="known: none"):
        implementation(Operation.EMBEDDING, "fp8_e4m3", "aten")


def test_register_refuses_repeats_and_unknown_formats():
    item = implementation(Operation.LINEAR, "fp32", "aten")
    with pytest.raises(ValueError, match="twice"):
        registry.register(item)


def test_worst():
    refused, emulated, native = Support(Level.REFUSED), Support(Level.EMULATED), Support(Level.NATIVE)
    assert worst([native, emulated, refused]) is refused
    assert worst([native, emulated]) is emulated
    assert worst([]).level is Level.NATIVE


def test_static_shape():
    assert static_shape(nn.Linear(3, 5, bias=False), 7) == OpShape(Operation.LINEAR, 7, 3, 5, False)
    assert static_shape(nn.Embedding(10, 4)) == OpShape(Operation.EMBEDDING, 1, 10, 4, False)
    same = nn.Conv2d(4, 8, (5, 3), padding="same", dilation=(1, 2), groups=2, dtype=torch.bfloat16)
    assert static_shape(same, 9) == OpShape(
        Operation.CONV2D, 9, 4, 8, True, (5, 3), (1, 1), (2, 2), (1, 2), 2, "bfloat16"
    )
    with pytest.raises(ConversionError, match="LayerNorm"):
        static_shape(nn.LayerNorm(3))


def test_every_format_has_a_tolerance():
    assert set(reference.TOLERANCE) == set(FORMATS)


def test_held_bytes_counts_tied_and_viewed_storage_once():
    table = nn.Embedding(100, 16)
    head = nn.Linear(16, 100, bias=False)
    head.weight = table.weight
    model = nn.ModuleList([table, head])
    model.register_buffer("view", table.weight.detach()[:3])
    assert held_bytes(model) == 100 * 16 * 4


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_held_bytes_agree_with_the_memory_of_the_process():
    program = """
import gc, torch
from torch import nn
from autoprec.kernels.calibration import Calibration
from autoprec.kernels.formats import FORMATS
from autoprec.kernels.registry import *

def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096

source = nn.Linear(1024, 1024, bias=False)
seen = [Calibration(-1.0, 1.0), Calibration(-1.0, 1.0, (0,) * 1024)]
found = {}
shape = OpShape(Operation.LINEAR, 1, 1024, 1024, False)
for item in implementations(Operation.LINEAR):
    if item.support(shape, torch.device("cpu")).level is not Level.NATIVE:
        continue
    held = item.convert(source, seen[FORMATS[item.format].smooth], {})
    if held is source:
        continue
    before = resident()
    copies = [item.convert(source, seen[FORMATS[item.format].smooth], {}) for _ in range(6)]
    found[item.format, item.name] = resident() - before, 6 * held_bytes(held)
    del copies
print(found)
"""

    # With a fixed threshold glibc maps each large block on its own, so that resident memory follows at once.
    def odd():
        output = run(program, MALLOC_MMAP_THRESHOLD_="16384", OMP_NUM_THREADS="1")
        return {
            name: (grown, counted)
            for name, (grown, counted) in ast.literal_eval(output).items()
            # Half a megabyte may come or go with what conversions before left to the allocator.
            if grown != pytest.approx(counted, rel=0.1, abs=2**19)
        }

    # A system that is short of memory takes pages of idle processes: what is odd each time is wrong.
    first = odd()
    assert not first or not first.keys() & odd().keys(), first


def test_fused_encoder_layers_call_converted_modules():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    kernel = implementation(Operation.LINEAR, "fp8_e5m2", "triton")
    layer.linear1 = kernel.convert(layer.linear1, None, {})
    rows = torch.randn(2, 5, 64)
    with torch.no_grad():
        seen = layer(rows)
    # With gradients on, torch has no fused path: that is what the converted module computes.
    torch.testing.assert_close(seen, layer(rows).detach(), rtol=1e-4, atol=1e-5)


def test_held_weight_reads_as_a_plain_tensor():
    weight = torch.randn(3, 2).as_subclass(HeldWeight)
    assert type(weight + 1) is torch.Tensor
    assert (weight.dtype, weight.device, weight.shape) == (torch.float32, CPU, (3, 2))
    with pytest.raises(AttributeError):
        implementation(Operation.LINEAR, "bf16", "aten").convert(nn.Linear(2, 3), None, {}).weight = weight


def test_kernels_need_torch_only():
    program = (
        "import sys, autoprec.kernels.registry as registry\n"
        "registry.implementations(registry.Operation.LINEAR)\n"
        "print(sorted({'pydantic', 'ray', 'sqlalchemy', 'gymnasium', 'optuna', 'scipy'} & set(sys.modules)))"
    )
    assert run(program).strip() == "[]"
