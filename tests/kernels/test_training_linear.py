import itertools

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from autoprec.kernels.ops.quantize import quantize
from autoprec.kernels.training_linear import PRODUCT_FORMATS, ProductFormats, TrainingLinear

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2


def run(layer, rows, into):
    rows = rows.clone().requires_grad_()
    layer.zero_grad(set_to_none=True)
    layer(rows).backward(into)
    return [layer(rows).detach(), rows.grad, layer.weight.grad.clone(), layer.bias.grad.clone()]


def linear(inputs=96, outputs=160, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, dtype=dtype)


def relative(found, wanted):
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("name", PRODUCT_FORMATS)
def test_each_product_is_rounded_by_its_own_choice(name):
    """Only the product that is chosen is coarse; the bounds are the types' RMS roundings, of two operands."""
    source = linear()
    rows, into = torch.randn(40, 96), torch.randn(40, 160)
    exact = run(source, rows, into)
    fine = 0.005  # bfloat16
    coarse = {"bf16": fine, "fp8_e4m3": 0.08, "fp8_block": 0.05}[name]
    for place, product in enumerate(("fprop", "dgrad", "wgrad")):
        formats = ProductFormats(**{"fprop": "bf16", "dgrad": "bf16", "wgrad": "bf16", product: name})
        found = run(TrainingLinear(source, formats), rows, into)
        errors = [relative(*pair) for pair in zip(found, exact, strict=True)]
        for other, error in enumerate(errors[:3]):
            assert error < (coarse if other == place else fine)
        if name != "bf16":
            assert errors[place] > 2 * fine
        assert errors[3] < 1e-6


def test_the_gradients_are_those_of_the_quantised_operands():
    source = linear()
    rows, into = torch.randn(7, 96), torch.randn(7, 160)
    found = run(TrainingLinear(source, ProductFormats()), rows, into)

    def rounded(matrix, kind):
        return quantize(matrix, kind, "row").dequantize()

    weight = source.weight.detach()
    wanted = [
        rounded(rows, E4) @ rounded(weight, E4).t() + source.bias.detach(),
        rounded(into, E5) @ rounded(weight.t(), E4).t(),
        rounded(into.t(), E5) @ rounded(rows.t(), E4).t(),
        into.sum(0),
    ]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_are_shared_and_checkpoints_fit(dtype):
    source = linear(dtype=dtype)
    layer = TrainingLinear(source, ProductFormats())
    assert layer.weight is source.weight
    linear(dtype=dtype).load_state_dict(layer.state_dict())
    rows = torch.randn(2, 3, 96, dtype=dtype)
    assert layer(rows).shape == (2, 3, 160)
    assert layer(rows).dtype is dtype
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(rows).dtype is torch.bfloat16


def test_it_compiles_whole_forward_and_backward():
    layer = TrainingLinear(linear(), ProductFormats("fp8_block", "fp8_e4m3", "bf16"))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    rows, into = torch.randn(5, 96), torch.randn(5, 160)
    for one, other in zip(run(compiled, rows, into), run(layer, rows, into), strict=True):
        torch.testing.assert_close(one, other)


def test_frozen_parts_get_no_gradient():
    source = linear()
    source.weight.requires_grad_(False)
    layer = TrainingLinear(source, ProductFormats())
    layer(torch.randn(3, 96)).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None


def train(formats, seed):
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    if formats is not None:
        for place in (0, 2, 4):
            model[place] = TrainingLinear(model[place], formats)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for step in range(300):
        batch = torch.arange(step * 64, step * 64 + 64) % 1500
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        return float((model(images[1500:]).argmax(1) == labels[1500:]).double().mean())


def test_digits_are_learnt_as_well_as_in_float32():
    """Held-out accuracy of three seeds: fp8 in every product loses less than 3 points of 297 digits."""
    exact = sum(train(None, seed) for seed in range(3)) / 3
    assert exact > 0.88
    for name in ("fp8_e4m3", "fp8_block"):
        found = sum(train(ProductFormats(name, name, name), seed) for seed in range(3)) / 3
        assert found > exact - 0.03, name


@pytest.mark.parametrize("place", ["fprop", "dgrad", "wgrad"])
def test_unknown_formats_are_named(place):
    with pytest.raises(ValueError, match=f"{place} must be one of bf16, fp8_e4m3, fp8_block, got 'int8'"):
        ProductFormats(**{place: "int8"})


def test_wrong_inputs_are_named():
    layer = TrainingLinear(linear(), ProductFormats())
    with pytest.raises(ValueError, match="97 features, expected 96"):
        layer(torch.zeros(2, 97))
    with pytest.raises(ValueError, match=r"torch\.float64"):
        layer(torch.zeros(2, 96).double())


def test_all_choices_run():
    for names in itertools.product(PRODUCT_FORMATS, repeat=3):
        run(TrainingLinear(linear(32, 16), ProductFormats(*names)), torch.randn(4, 32), torch.randn(4, 16))


def test_inductor_compiles_forward_and_backward():
    torch._dynamo.reset()
    layer = TrainingLinear(linear(), ProductFormats("fp8_e4m3", "fp8_e4m3", "fp8_block"))
    rows, into = torch.randn(5, 96), torch.randn(5, 160)
    found, wanted = run(torch.compile(layer), rows, into), run(layer, rows, into)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_second_derivative_raises():
    layer = TrainingLinear(linear(), ProductFormats())
    rows = torch.randn(3, 96, requires_grad=True)
    (slope,) = torch.autograd.grad(layer(rows).square().sum(), rows, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()


def test_what_is_no_plain_linear_is_refused_and_hooks_are_kept():
    class Doubling(nn.Linear):
        def forward(self, input):
            return 2 * super().forward(input)

    with pytest.raises(ValueError, match="Doubling"):
        TrainingLinear(Doubling(8, 8), ProductFormats())
    with pytest.raises(ValueError, match="parametrization"):
        TrainingLinear(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), ProductFormats())
    with pytest.raises(ValueError, match="formats must be ProductFormats"):
        TrainingLinear(nn.Linear(8, 8), "fp8_e4m3")
    source = linear()
    source.register_forward_hook(lambda module, inputs, output: output * 0)
    assert not TrainingLinear(source, ProductFormats())(torch.randn(2, 96)).any()
