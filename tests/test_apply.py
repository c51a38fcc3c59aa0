import copy

import pytest
import torch
from torch import nn

from autoprec import apply_plan
from autoprec.apply import read_applied
from autoprec.errors import ConversionError, PlanError
from autoprec.fingerprint import architecture_fingerprint, weights_fingerprint
from autoprec.kernels.device import capability
from autoprec.kernels.registry import FormatModule, held_bytes
from autoprec.plan import Device, Evidence, Interval, ModulePlan, Plan, Quality, UnitPlan

OPERATIONS = {nn.Linear: "linear", nn.Conv2d: "conv2d", nn.Embedding: "embedding"}


class Net(nn.Module):
    """An embedding, a convolution, and a head that is tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 64)
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        self.head = nn.Linear(64, 16, bias=False)
        self.head.weight = self.table.weight

    def forward(self, indices):
        x = self.table(indices)
        return self.head(self.body(self.conv(x[:, None])[:, 0]))


INDICES = torch.arange(8).view(2, 4)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net().eval()


def evidence(model, **device):
    device = {
        "name": "cpu",
        "capability": capability(),
        "runtime": "eager",
        "threads": 1,
        "versions": {},
    } | device
    return Evidence(
        workload="w", fingerprint="f", weights=weights_fingerprint(model), objective="latency",
        max_quality_drop=None, baseline_ms=1.0, plan_ms=1.0, speedup=Interval(value=1.0, low=1.0, high=1.0),
        speedup_over_lossless=None, baseline_bytes=1, plan_bytes=1,
        quality=Quality(metric="q", split="search", baseline=1.0, plan=1.0, drop=0.0), shapes=(),
        device=Device(**device), searcher="ilp", measured_runs=1, pairs=1, measured_at="now",
    )  # fmt: skip


def plan_for(model, modules, *, proven=True, **more):
    """Return a plan for `{path: (format, implementation)}`, one unit a module."""
    units = tuple(
        UnitPlan(
            name=path,
            format=format_name,
            modules=(
                ModulePlan(
                    path=path,
                    operation=OPERATIONS.get(type(model.get_submodule(path)), "linear"),
                    implementation=implementation,
                ),
            ),
        )
        for path, (format_name, implementation) in modules.items()
    )
    more = {
        "architecture": architecture_fingerprint(model),
        "evidence": evidence(model) if proven else None,
    } | more
    return Plan(units=units, **more)


MIXED = {
    "table": ("bf16", "aten"), "conv": ("fp16_weight", "upcast"),
    "body.0": ("int8_weight_only", "dequantize"), "body.2": ("fp32", "aten"), "head": ("bf16", "aten"),
}  # fmt: skip


def unchanged(model, call):
    """Call something that must leave a model as it was, module for module."""
    modules, state = dict(model.named_modules()), {k: v.clone() for k, v in model.state_dict().items()}
    call()
    assert dict(model.named_modules()) == modules
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.filterwarnings("error")
def test_a_plan_changes_the_model_in_place_and_says_what_runs(model):
    exact = model(INDICES)
    body, before = model.body, held_bytes(model)
    plan = plan_for(model, MIXED)
    applied = apply_plan(model, plan)
    assert applied.modules == MIXED == read_applied(model, plan)
    assert applied.warnings == ()
    assert model.body is body and type(model.body[2]) is nn.Linear
    kinds = {path for path, module in model.named_modules() if isinstance(module, FormatModule)}
    assert kinds == set(MIXED) - {"body.2"}
    error = torch.linalg.norm(model(INDICES) - exact) / torch.linalg.norm(exact)
    assert 0.0 < error < 0.02
    assert held_bytes(model) < before


def test_a_plan_read_from_a_file_does_the_same(model, tmp_path):
    twin = copy.deepcopy(model)
    plan = plan_for(model, MIXED)
    apply_plan(model, plan)
    apply_plan(twin, Plan.load(plan.save(tmp_path / "plan.json")))
    assert torch.equal(model(INDICES), twin(INDICES))


def test_the_mode_of_the_model_is_kept(model):
    model.body.train()
    apply_plan(model, plan_for(model, MIXED))
    assert model.body[0].training and not model.table.training


@pytest.mark.filterwarnings("error")
def test_a_plan_that_changes_nothing_may_be_applied_again(model):
    plan = plan_for(model, {"body.0": ("fp32", "aten")})
    unchanged(model, lambda: apply_plan(model, plan))
    assert apply_plan(model, plan).modules == {"body.0": ("fp32", "aten")}


def test_a_second_plan_is_refused(model):
    plan = plan_for(model, MIXED)
    apply_plan(model, plan)
    with pytest.raises(PlanError, match="has a plan applied already; build it anew"):
        apply_plan(model, plan)


class TestPlansOfOtherModels:
    def test_another_architecture_is_refused(self, model):
        plan = plan_for(model, MIXED, architecture="0" * 32)
        with pytest.raises(PlanError, match=f"made for architecture {'0' * 32}, this Net has"):
            unchanged(model, lambda: apply_plan(model, plan))

    def test_a_module_that_the_model_lacks_is_named(self, model):
        units = (UnitPlan(
            name="unit", format="bf16",
            modules=(ModulePlan(path="body.7", operation="linear", implementation="aten"),),
        ),)  # fmt: skip
        plan = Plan(architecture="x", units=units)
        with pytest.raises(PlanError, match=r"unit 'unit': the model has no module 'body\.7'"):
            unchanged(model, lambda: apply_plan(model, plan))

    @pytest.mark.parametrize(("path", "operation"), [
        ("body.1", "linear"), ("body.0", "conv2d"), ("conv", "embedding"), ("body", "linear"),
    ])  # fmt: skip
    def test_a_module_of_another_kind_is_named(self, model, path, operation):
        module = ModulePlan(path=path, operation=operation, implementation="aten")
        plan = Plan(
            architecture=architecture_fingerprint(model),
            units=(UnitPlan(name="unit", format="bf16", modules=(module,)),),
        )
        with pytest.raises(PlanError, match=rf"module '{path}' is a \w+, the plan expects a \w+"):
            unchanged(model, lambda: apply_plan(model, plan))

    @pytest.mark.parametrize(("format_name", "implementation"), [("bf16", "magic"), ("fp3", "aten")])
    def test_a_kernel_that_does_not_exist_is_named(self, model, format_name, implementation):
        plan = plan_for(model, {"body.0": (format_name, implementation)})
        with pytest.raises(PlanError, match=rf"module 'body.0': no implementation '{implementation}'"):
            unchanged(model, lambda: apply_plan(model, plan))


class TestWhatIsNotProvenHere:
    def test_other_weights_are_applied_to_with_a_warning(self, model):
        plan = plan_for(model, MIXED)
        nn.init.zeros_(model.body[0].bias)
        with pytest.warns(UserWarning, match="weights are not those the plan was measured with") as caught:
            applied = apply_plan(model, plan)
        assert applied.modules == MIXED and len(applied.warnings) == len(caught) == 1
        assert caught[0].filename == __file__

    def test_another_device_is_a_warning(self, model):
        plan = plan_for(model, MIXED, evidence=evidence(model, name="other", capability="AVX9"))
        with pytest.warns(UserWarning, match=r"measured on other \(AVX9\).*run `autoprec check`"):
            assert len(apply_plan(model, plan).warnings) == 1

    def test_a_plan_that_was_never_measured_is_a_warning(self, model):
        with pytest.warns(UserWarning, match="no evidence"):
            apply_plan(model, plan_for(model, MIXED, proven=False))


class TestAllOrNothing:
    def test_a_kernel_that_refuses_the_last_module_leaves_the_model_as_it_was(self, model):
        nn.init.constant_(model.body[2].weight, 1e30)
        plan = plan_for(model, MIXED | {"body.2": ("fp16", "aten")})
        with pytest.raises(ConversionError, match=r"body\.2: a weight of magnitude 1e\+30"):
            unchanged(model, lambda: apply_plan(model, plan))
        apply_plan(model, plan_for(model, MIXED))

    def test_a_static_format_without_ranges_is_refused(self, model):
        plan = plan_for(model, {"body.0": ("int8_static", "onednn")})
        with pytest.raises(ConversionError, match=r"body\.0: "):
            unchanged(model, lambda: apply_plan(model, plan))


class TestSharing:
    def test_tied_weights_stay_one_tensor(self, model):
        alone = held_bytes(model)
        apply_plan(model, plan_for(model, {"table": ("bf16", "aten"), "head": ("bf16", "aten")}))
        tied = 16 * 64
        assert alone - held_bytes(model) == tied * 2

    def test_a_module_under_two_names_is_replaced_under_both(self):
        class Aliased(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = nn.Linear(64, 64)
                self.second = nn.Sequential(self.first)

            def forward(self, x):
                return self.second(self.first(x))

        model = Aliased()
        plan = plan_for(model, {"first": ("bf16", "aten")})
        apply_plan(model, plan)
        assert isinstance(model.first, FormatModule) and model.second[0] is model.first

        model = Aliased()
        same = plan_for(model, {"first": ("bf16", "aten"), "second.0": ("bf16", "aten")})
        assert apply_plan(model, same).modules == dict.fromkeys(("first", "second.0"), ("bf16", "aten"))
        assert model.second[0] is model.first

        model = Aliased()
        torn = plan_for(model, {"first": ("bf16", "aten"), "second.0": ("fp32", "aten")})
        with pytest.raises(
            ConversionError, match=r"second\.0 is the same module as first, which the plan runs in"
        ):
            unchanged(model, lambda: apply_plan(model, torn))

    def test_a_model_in_bf16_may_run_partly_in_fp32(self):
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).bfloat16()
        plan = plan_for(model, {"0": ("fp32", "aten"), "1": ("bf16", "aten")})
        assert apply_plan(model, plan).modules == {"0": ("fp32", "aten"), "1": ("bf16", "aten")}
        assert type(model[1]) is nn.Linear
        assert model(torch.ones(1, 64, dtype=torch.bfloat16)).dtype is torch.bfloat16
