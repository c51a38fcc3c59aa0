"""The modules of `linear_triton` beyond the contract that every implementation keeps."""

import copy
import io

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from autoprec.kernels.linear_triton import ScaledLinear, WeightOnlyLinear
from autoprec.kernels.registry import Level, Operation, implementation, implementations

FORMATS = ["fp8_e4m3", "fp8_e5m2", "fp8_block", "int8_dynamic_row", "int8_weight_only", "int4_weight_only"]


def converted(format_name, inputs=130, outputs=70, dtype=torch.float32):
    torch.manual_seed(0)
    module = nn.Linear(inputs, outputs, dtype=dtype).requires_grad_(False)
    return implementation(Operation.LINEAR, format_name, "triton").convert(module, None, {})


@pytest.fixture(params=FORMATS)
def layer(request):
    return converted(request.param)


def test_every_format_with_a_triton_kernel_is_tested():
    found = [item.format for item in implementations(Operation.LINEAR) if item.name == "triton"]
    assert sorted(found) == sorted(FORMATS)


def test_on_a_cpu_it_is_emulated_and_says_so():
    for name in FORMATS:
        kernel = implementation(Operation.LINEAR, name, "triton")
        from autoprec.kernels.checked import static_shape

        support = kernel.support(static_shape(nn.Linear(8, 8)), torch.device("cpu"))
        assert support.level is Level.EMULATED
        assert "no CPU kernel" in support.reason


def test_state_survives_saving(layer):
    rows = torch.randn(3, 130)
    other = converted(layer.format_name)
    for tensor in other.buffers():
        tensor.zero_()
    other.load_state_dict(load(save(layer.state_dict())))
    assert torch.equal(other(rows), layer(rows))
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(rows), layer(rows))


def test_a_state_of_another_shape_is_refused(layer):
    with pytest.raises(RuntimeError, match="size mismatch"):
        converted(layer.format_name, 194).load_state_dict(layer.state_dict())


def test_it_compiles_whole_exports_and_copies(layer):
    torch._dynamo.reset()
    rows = torch.randn(2, 3, 130)
    wanted = layer(rows)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(rows), wanted)
    exported = torch.export.export(
        layer, (rows,), dynamic_shapes=({1: torch.export.Dim("n", min=2, max=64)},)
    )
    longer = torch.randn(2, 7, 130)
    torch.testing.assert_close(exported.module()(longer), layer(longer))
    assert torch.equal(copy.deepcopy(layer)(rows), wanted)


def test_inductor_compiles_it_whole(layer):
    torch._dynamo.reset()  # it stops compiling a function for the ninth layer
    rows = torch.randn(4, 130)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(rows), layer(rows), rtol=1e-5, atol=1e-6)


def test_autocast_gives_what_a_linear_gives(layer):
    rows = torch.randn(3, 130)
    plain = nn.Linear(130, 70)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(rows).dtype is plain(rows).dtype is torch.bfloat16
        assert layer(rows[:0]).dtype is torch.bfloat16
    assert layer(rows).dtype is torch.float32
    assert layer(rows.double()).dtype is torch.float64


def test_it_moves_between_devices(layer):
    moved = copy.deepcopy(layer).to("meta")
    assert moved(torch.empty(5, 130, device="meta")).shape == (5, 70)
    assert {tensor.device.type for tensor in moved.buffers()} == {"meta"}


def test_to_a_dtype_leaves_the_weights_quantised():
    """`model.half()` turns float buffers, scales among them, and must not turn the integers."""
    for name in FORMATS:
        layer = converted(name)
        rows = torch.randn(3, 130)
        before = layer(rows)
        narrow = copy.deepcopy(layer).to(torch.bfloat16)
        error = (narrow(rows.bfloat16()).float() - before).square().mean().sqrt()
        assert error < 0.05 * before.square().mean().sqrt(), name
        assert [item.dtype for item in narrow.buffers()] == [item.dtype for item in layer.buffers()]


def test_kinds():
    assert isinstance(converted("fp8_block"), ScaledLinear)
    assert isinstance(converted("int4_weight_only"), WeightOnlyLinear)


def test_a_state_of_another_format_is_refused():
    for given, wanted in (
        ("fp8_e5m2", "fp8_e4m3"),
        ("int8_dynamic_row", "fp8_e4m3"),
        ("fp8_e4m3", "int8_dynamic_row"),
    ):
        with pytest.raises(RuntimeError, match=f"{wanted} holds"):
            converted(wanted).load_state_dict(converted(given).state_dict())
