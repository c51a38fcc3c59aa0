"""What every implementation of every format promises, run over all that are registered.

An implementation that this processor refuses is only checked to refuse by `convert` too.
"""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

from autoprec.errors import ConversionError
from autoprec.kernels import reference
from autoprec.kernels.calibration import Calibration
from autoprec.kernels.checked import relative_error, self_check, static_shape
from autoprec.kernels.formats import FORMATS
from autoprec.kernels.registry import (
    FormatModule,
    Implementation,
    Level,
    Operation,
    held_bytes,
    implementations,
)

CPU = torch.device("cpu")
NAN, INF = math.nan, math.inf


def known(kernel: Implementation, module):
    """Return what calibration would tell: some smoothing exponents where the format takes them."""
    smooth = FORMATS[kernel.format].smooth
    inputs = getattr(module, "in_features", 0)
    return Calibration(-4.0, 5.0, tuple(i % 9 - 4 for i in range(inputs)) if smooth else ())


def parametrize(operation):
    items = implementations(operation)
    return pytest.mark.parametrize("kernel", items, ids=[f"{item.format}-{item.name}" for item in items])


def convert(kernel: Implementation, module, memo=None):
    """Convert, or skip where it is refused; refusing and raising must go together."""
    support = kernel.support(static_shape(module), CPU)
    if support.level is Level.REFUSED:
        with pytest.raises(ConversionError):
            kernel.convert(module, known(kernel, module), {})
        pytest.skip(support.reason)
    return kernel.convert(module, known(kernel, module), {} if memo is None else memo)


def linear(inputs=128, outputs=64, bias=True, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias, dtype=dtype).requires_grad_(False)


def expected_linear(kernel, module, inputs):
    return reference.linear(kernel.format, inputs, module.weight, module.bias, known(kernel, module))


def assert_close(kernel, seen, expected, factor=1.0):
    assert seen.shape == expected.shape
    bound = reference.TOLERANCE[kernel.format] * factor
    assert relative_error(seen, expected) <= bound


@parametrize(Operation.LINEAR)
class TestLinear:
    def test_odd_shapes(self, kernel):
        if reason := self_check(kernel):
            pytest.skip(reason)
        sizes = (1, 16, 17, 48, 63, 64, 100, 128, 129)
        for inputs, outputs in itertools.product(sizes, sizes):
            module = linear(inputs, outputs)
            if kernel.support(static_shape(module), CPU).level is Level.REFUSED:
                with pytest.raises(ConversionError):
                    kernel.convert(module, known(kernel, module), {})
                continue
            converted = kernel.convert(module, known(kernel, module), {})
            for rows in (1, 2, 17, 100):
                data = torch.randn(rows, inputs)
                assert_close(kernel, converted(data), expected_linear(kernel, module, data))

    def test_without_bias(self, kernel):
        module = linear(bias=False)
        data = torch.randn(5, 128)
        converted = convert(kernel, module)
        assert converted.bias is None
        assert_close(kernel, converted(data), expected_linear(kernel, module, data))

    @pytest.mark.parametrize("leading", [(), (0,), (3, 0), (1,), (2, 3), (2, 1, 3)])
    def test_leading_dimensions(self, kernel, leading):
        module = linear()
        data = torch.randn(*leading, 128)
        seen = convert(kernel, module)(data)
        assert seen.dtype == torch.float32
        assert_close(kernel, seen, expected_linear(kernel, module, data))

    def test_non_contiguous_inputs_and_weight(self, kernel):
        module = linear()
        module.weight = nn.Parameter(torch.randn(128, 64).t(), requires_grad=False)
        wide = torch.randn(256, 6)
        converted = convert(kernel, module)
        for data in (wide[:128].t(), wide[::2].t(), torch.randn(4, 3, 128).transpose(0, 1)):
            assert not data.is_contiguous()
            assert_close(kernel, converted(data), expected_linear(kernel, module, data))

    @pytest.mark.parametrize("magnitude", [1e30, 1e4, 1e-3, 1e-30, 1e-41, 0.0])
    def test_input_magnitudes(self, kernel, magnitude):
        module = linear(bias=False)
        data = torch.randn(7, 128) * magnitude
        seen = convert(kernel, module)(data)
        expected = expected_linear(kernel, module, data)
        if kernel.format == "fp16":
            # The type's own range: overflow above 65504, steps of 6e-8 near zero.
            assert bool(seen.isfinite().all()) == (magnitude < 1e5)
            expected = expected.half().float()
        finite = expected.isfinite()
        assert torch.equal(seen.isfinite(), finite)
        torch.testing.assert_close(seen[~finite], expected[~finite], equal_nan=True)
        if magnitude > 1e-6 or kernel.format != "fp16":
            # Subnormal sums come in steps of 1.4e-45, each up to 1e-4 of a value of this size.
            factor = 100.0 if magnitude == 1e-41 and reference.TOLERANCE[kernel.format] < 1e-3 else 1.0
            assert_close(kernel, seen[finite], expected[finite], factor)

    @pytest.mark.parametrize("magnitude", [1e30, 1e-30, 1e-41])
    def test_weight_magnitudes_and_zero_rows(self, kernel, magnitude):
        module = linear(bias=False)
        module.weight *= magnitude
        module.weight[3] = 0
        data = torch.randn(7, 128)
        if FORMATS[kernel.format].weight == "float16" and magnitude > 1:
            with pytest.raises(ConversionError, match="65504"):
                kernel.convert(module, known(kernel, module), {})
            return
        seen = convert(kernel, module)(data)
        assert bool((seen[:, 3] == 0).all())
        assert_close(kernel, seen, expected_linear(kernel, module, data))

    def test_all_zero_weight(self, kernel):
        module = linear()
        module.weight.zero_()
        seen = convert(kernel, module)(torch.randn(3, 128))
        torch.testing.assert_close(seen, module.bias.expand(3, -1), rtol=2**-8, atol=1e-6)

    @pytest.mark.parametrize("value", [NAN, INF, -INF])
    def test_nan_and_inf_are_not_hidden(self, kernel, value):
        module = linear()
        data = torch.randn(4, 128)
        data[1, 3] = value
        seen = convert(kernel, module)(data)
        finite = expected_linear(kernel, module, data).isfinite()
        scaled_by_torch = FORMATS[kernel.format].activation in ("uint8", "uint7")
        if math.isnan(value) and scaled_by_torch:
            # Documented in linear_int8: NaN enters these kernels as some integer.
            assert bool(seen.isfinite().all())
            return
        assert torch.equal(seen.isfinite(), finite)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_takes_and_returns_the_dtype_of_the_module(self, kernel, dtype):
        module = linear(dtype=dtype)
        data = torch.randn(2, 5, 128).to(dtype)
        converted = convert(kernel, module)
        seen = converted(data)
        assert seen.dtype is dtype
        assert converted.weight.dtype is dtype
        rounding = 2**-8 if dtype is torch.bfloat16 else 2**-11
        error = relative_error(seen, expected_linear(kernel, module, data))
        assert error <= reference.TOLERANCE[kernel.format] + rounding

    def test_source_is_unchanged_and_attributes_are_kept(self, kernel):
        module = linear()
        module.eval()
        before = copy.deepcopy(module.state_dict())
        converted = convert(kernel, module)
        data = torch.randn(3, 128)
        converted(data)
        assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
        assert (converted.in_features, converted.out_features) == (128, 64)
        assert converted.weight.shape == (64, 128)
        assert converted.weight.device == CPU
        assert not converted.training
        torch.testing.assert_close(converted.bias.float(), module.bias, rtol=2**-8, atol=0)
        factors = known(kernel, module).factors() if FORMATS[kernel.format].smooth else 1.0
        held = reference.fake_weight(kernel.format, module.weight * factors) / factors
        assert relative_error(converted.weight, held) <= 2**-8

    def test_says_what_it_is(self, kernel):
        converted = convert(kernel, linear())
        if isinstance(converted, FormatModule):
            assert (converted.format_name, converted.implementation_name) == (kernel.format, kernel.name)
            assert kernel.format in repr(converted)
        else:
            assert kernel.format == "fp32"

    def test_copies_compute_the_same(self, kernel):
        converted = convert(kernel, linear())
        data = torch.randn(3, 128)
        twin = copy.deepcopy(converted)
        torch.testing.assert_close(twin(data), converted(data), rtol=0, atol=0)
        assert held_bytes(twin) == held_bytes(converted)

    def test_no_process_wide_setting_leaks(self, kernel):
        before = (torch.backends.quantized.engine, torch.is_grad_enabled(), torch.get_num_threads())
        convert(kernel, linear())(torch.randn(3, 128))
        assert (torch.backends.quantized.engine, torch.is_grad_enabled(), torch.get_num_threads()) == before

    def test_held_bytes(self, kernel):
        module = linear(768, 768, bias=False)
        ratio = held_bytes(convert(kernel, module)) / held_bytes(module)
        if (kernel.format.startswith("int8_dynamic"), kernel.name) == (True, "onednn"):
            assert ratio == pytest.approx(
                2 * 8 / 32, rel=0.03
            )  # keeps the plain weight beside the packed one
        elif kernel.format == "int4_weight_only":
            assert ratio == pytest.approx((4 + 2 * 16 / 64) / 32, rel=0.01)
        else:
            assert ratio == pytest.approx(FORMATS[kernel.format].bits / 32, rel=0.03)

    def test_grad_and_inference_modes(self, kernel):
        module = linear()
        data = torch.randn(3, 128)
        with torch.inference_mode():
            converted = convert(kernel, module)
            inside = converted(data)
        outside = converted(data.clone().requires_grad_())
        torch.testing.assert_close(outside.detach(), inside.clone(), rtol=0, atol=0)
        if isinstance(converted, FormatModule):
            with pytest.raises(RuntimeError, match="no gradient"):
                outside.sum().backward()

    def test_wrong_width_is_refused(self, kernel):
        converted = convert(kernel, linear())
        with pytest.raises(RuntimeError):
            converted(torch.randn(4, 256))

    def test_hooks_are_kept(self, kernel):
        module = linear()
        seen = []
        module.register_forward_hook(lambda *_: seen.append("after"))
        module.register_forward_pre_hook(lambda *_: seen.append("before"))
        convert(kernel, module)(torch.randn(2, 128))
        assert seen == ["before", "after"]

    def test_refuses_what_it_cannot_convert(self, kernel):
        class Doubling(nn.Linear):
            def forward(self, input):
                return 2 * super().forward(input)

        parametrized = nn.utils.parametrizations.weight_norm(linear())
        wrong = [nn.Embedding(3, 4), Doubling(64, 64), parametrized, nn.Linear(64, 64, device="meta")]
        empty = nn.Linear(64, 64)
        empty.in_features, empty.weight = 0, nn.Parameter(torch.empty(64, 0))
        for module in [*wrong, nn.Linear(64, 64, dtype=torch.float64), empty]:
            with pytest.raises(ConversionError):
                kernel.convert(module, known(kernel, module), {})

    def test_refuses_other_devices(self, kernel):
        support = kernel.support(static_shape(linear()), torch.device("cuda"))
        if "cuda" in kernel.devices and torch.cuda.is_available():
            pytest.skip("it is for GPUs too, and there is one")
        assert support.level is Level.REFUSED
        assert "cuda" in kernel.devices or "CPU only" in support.reason

    def test_input_range(self, kernel):
        if not FORMATS[kernel.format].calibrated:
            assert kernel.convert(linear(), None, {}) is not None
            return
        good = known(kernel, linear())
        for bad in ((1.0, -1.0), (0.0, INF), (NAN, 1.0)):
            with pytest.raises(ConversionError, match="range"):
                kernel.convert(linear(), Calibration(*bad, good.smoothing), {})
        with pytest.raises(ConversionError, match="range"):
            kernel.convert(linear(), None, {})
        data = torch.rand(3, 128)
        module = linear()
        converted = kernel.convert(module, Calibration(0.0, 0.0, good.smoothing), {})
        assert bool(converted(data).isfinite().all())

    def test_smoothing_is_for_every_input_channel(self, kernel):
        if FORMATS[kernel.format].smooth:
            for exponents in ((), (0,) * 127):
                with pytest.raises(ConversionError, match="128 smoothing exponents"):
                    kernel.convert(linear(), Calibration(-4.0, 5.0, exponents), {})

    def test_non_finite_weight(self, kernel):
        module = linear()
        module.weight[2, 5] = NAN
        integers = FORMATS[kernel.format].weight.startswith("int")
        if integers or (kernel.format, kernel.name) == ("fp16_weight", "fbgemm"):
            with pytest.raises(ConversionError, match="NaN"):
                kernel.convert(module, known(kernel, module), {})
        else:
            seen = convert(kernel, module)(torch.randn(3, 128))
            assert bool(seen[:, 2].isnan().all())

    def test_conversion_is_shared_by_tied_modules(self, kernel):
        first, second = linear(), nn.Linear(128, 64, bias=False)
        second.weight = first.weight
        memo = {}
        both = nn.ModuleList([convert(kernel, first, memo), convert(kernel, second, memo)])
        data = torch.randn(3, 128)
        assert_close(kernel, both[1](data), expected_linear(kernel, second, data))
        plain = kernel.name in ("aten", "upcast", "dequantize", "int8pack", "int_mm", "triton")
        assert (held_bytes(both) < 1.1 * held_bytes(both[0])) == plain


@parametrize(Operation.CONV2D)
class TestConv2d:
    @pytest.mark.parametrize(
        "settings",
        [
            {"in_channels": 1, "out_channels": 8, "kernel_size": 3},
            {"in_channels": 3, "out_channels": 17, "kernel_size": 5, "stride": 2, "padding": 2},
            {"in_channels": 16, "out_channels": 32, "kernel_size": 1, "bias": False},
            {"in_channels": 16, "out_channels": 16, "kernel_size": 3, "groups": 16, "padding": 1},
            {"in_channels": 16, "out_channels": 32, "kernel_size": 3, "groups": 4, "padding": (0, 2)},
            {"in_channels": 6, "out_channels": 9, "kernel_size": 3, "groups": 3, "dilation": (2, 1)},
            {"in_channels": 4, "out_channels": 8, "kernel_size": (4, 3), "padding": "same"},
            {"in_channels": 4, "out_channels": 8, "kernel_size": 3, "padding": "valid"},
            {"in_channels": 4, "out_channels": 8, "kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
            {
                "in_channels": 4,
                "out_channels": 8,
                "kernel_size": 3,
                "padding": (1, 0),
                "padding_mode": "circular",
            },
        ],
        ids=str,
    )
    def test_settings(self, kernel, settings):
        torch.manual_seed(0)
        module = nn.Conv2d(**settings).requires_grad_(False)
        converted = convert(kernel, module)
        batch = torch.randn(3, module.in_channels, 13, 11)
        odd = batch.transpose(2, 3)
        for data in (batch, batch[:1], batch[0], batch[:0], odd, batch.to(memory_format=torch.channels_last)):
            seen = converted(data)
            assert seen.shape == module(data).shape
            assert_close(kernel, seen, reference.conv2d(kernel.format, data, module, known(kernel, module)))
        assert relative_error(converted.weight, reference.fake_weight(kernel.format, module.weight)) <= 2**-8
        for name in ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"):
            assert getattr(converted, name) == getattr(module, name)

    @pytest.mark.parametrize("value", [NAN, INF])
    def test_nan_and_inf(self, kernel, value):
        module = nn.Conv2d(8, 8, 3, padding=1).requires_grad_(False)
        data = torch.randn(2, 8, 9, 9)
        data[1, 2, 3, 4] = value
        seen = convert(kernel, module)(data)
        expected = reference.conv2d(kernel.format, data, module, known(kernel, module))
        if math.isnan(value) and kernel.format.startswith("int8_static"):
            assert bool(seen.isfinite().all())  # documented in conv2d: NaN enters as some integer
        else:
            # A kernel may multiply an inf by padding or by other outputs' zeros, never lose it.
            assert bool((~seen.isfinite() | expected.isfinite()).all())

    @pytest.mark.parametrize("magnitude", [1e30, 1e-30, 0.0])
    def test_magnitudes(self, kernel, magnitude):
        module = nn.Conv2d(8, 8, 3, bias=False).requires_grad_(False)
        module.weight[3] = 0
        data = torch.randn(2, 8, 9, 9) * magnitude
        seen = convert(kernel, module)(data)
        expected = reference.conv2d(kernel.format, data, module, known(kernel, module))
        if kernel.format == "fp16" and magnitude:
            assert bool(seen[:, :3].isfinite().all()) == (magnitude < 1)
        else:
            assert_close(kernel, seen, expected)

    def test_dtype_source_and_copies(self, kernel):
        module = nn.Conv2d(16, 32, 3, dtype=torch.bfloat16).requires_grad_(False)
        before = module.weight.clone()
        converted = convert(kernel, module)
        data = torch.randn(2, 16, 9, 9).bfloat16()
        seen = converted(data)
        assert seen.dtype is torch.bfloat16
        assert torch.equal(module.weight, before)
        torch.testing.assert_close(copy.deepcopy(converted)(data), seen, rtol=0, atol=0)

    def test_held_bytes(self, kernel):
        module = nn.Conv2d(64, 64, 3, bias=False)
        ratio = held_bytes(convert(kernel, module)) / held_bytes(module)
        assert ratio == pytest.approx(FORMATS[kernel.format].bits / 32, rel=0.03)

    def test_wrong_channels_are_refused(self, kernel):
        converted = convert(kernel, nn.Conv2d(8, 8, 3).requires_grad_(False))
        with pytest.raises(RuntimeError):
            converted(torch.randn(2, 4, 9, 9))


@parametrize(Operation.EMBEDDING)
class TestEmbedding:
    @pytest.mark.parametrize(("rows", "width"), [(1, 1), (17, 63), (100, 64), (50, 129)])
    def test_shapes(self, kernel, rows, width):
        torch.manual_seed(0)
        module = nn.Embedding(rows, width, padding_idx=0).requires_grad_(False)
        converted = convert(kernel, module)
        for shape in ((), (0,), (3,), (2, 0), (2, 3)):
            for dtype in (torch.int64, torch.int32):
                indices = torch.randint(0, rows, shape, dtype=dtype)
                seen = converted(indices)
                assert seen.dtype is torch.float32
                assert_close(kernel, seen, reference.embedding(kernel.format, indices, module.weight))
        assert (converted.num_embeddings, converted.embedding_dim) == (rows, width)
        assert converted.padding_idx == 0
        assert bool((converted(torch.tensor([0])) == 0).all())

    def test_indices_out_of_range_raise(self, kernel):
        converted = convert(kernel, nn.Embedding(10, 64))
        for index in (-1, 10):
            with pytest.raises(IndexError):
                converted(torch.tensor([index]))

    def test_held_bytes(self, kernel):
        module = nn.Embedding(1000, 128)
        ratio = held_bytes(convert(kernel, module)) / held_bytes(module)
        scales = {"int8_weight_only": 16 / 128, "int4_weight_only": 2 * 16 / 64}.get(kernel.format, 0)
        assert ratio == pytest.approx((FORMATS[kernel.format].bits + scales) / 32, rel=0.001)

    def test_refuses_tables_that_change(self, kernel):
        for module in (nn.Embedding(10, 4, max_norm=1.0), nn.Embedding(10, 4, sparse=True)):
            with pytest.raises(ConversionError):
                kernel.convert(module, None, {})

    def test_tied_to_an_output_layer(self, kernel):
        table = nn.Embedding(256, 128)
        head = nn.Linear(128, 256, bias=False)
        head.weight = table.weight
        partners = {item.name: item for item in implementations(Operation.LINEAR, kernel.format)}
        for name in ("aten", "upcast", "dequantize", "int8pack"):
            if name in partners:
                memo = {}
                pair = nn.ModuleList([convert(kernel, table, memo), convert(partners[name], head, memo)])
                assert held_bytes(pair) == held_bytes(pair[0])
