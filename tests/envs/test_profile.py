from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from autoprec.envs.measure import Measurer
from autoprec.envs.plans import as_given, assignment_of, plan_of
from autoprec.envs.profile import profile_workload
from autoprec.envs.search_space import search_space
from autoprec.envs.space import FEATURES, FORMAT_NAMES, Goal
from autoprec.envs.timing import TimingSettings
from autoprec.envs.units import discover
from autoprec.errors import PlanError, SettingError, WorkloadError
from autoprec.finding import load_workload
from autoprec.fingerprint import architecture_fingerprint
from autoprec.kernels.registry import held_bytes
from autoprec.runtimes.eager import EagerRuntime
from autoprec.workload import Example, Workload

QUICK = TimingSettings(max_seconds=0.02, min_pairs=3, max_pairs=3, min_sample_seconds=0.0, warmup=1)
FORMATS = (
    "fp32",
    "bf16",
    "fp16_weight",
    "int8_dynamic_row",
    "int8_static_7bit",
    "int8_weight_only",
    "fp8_e4m3",
)
K = {name: FORMAT_NAMES.index(name) for name in FORMAT_NAMES}


class Net(nn.Module):
    """Siblings, a tied embedding and head, a convolution, and a layer that no kernel takes."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(32, 64)
        self.gate, self.up = nn.Linear(64, 128), nn.Linear(64, 128)
        self.down = nn.Linear(128, 64)
        self.norm = nn.LayerNorm(64)
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.head = nn.Linear(64, 32, bias=False)
        self.head.weight = self.table.weight

    def forward(self, indices):
        x = self.table(indices)
        x = self.norm(x + self.down(torch.relu(self.gate(x)) * self.up(x)))
        return self.head(self.conv(x[:, None]).mean(dim=1))


class Profiling(Workload):
    def build_model(self):
        return Net()

    def example_inputs(self):
        return torch.arange(16).view(2, 8)

    def calibration(self):
        return [torch.arange(16, 32).view(2, 8)]


class Setup:
    def __init__(self, objective="latency", workload=Profiling, formats=FORMATS):
        torch.manual_seed(0)
        self.loaded = load_workload(workload)
        self.model = self.loaded.build_model()
        examples = self.loaded.examples("latency")
        self.measurer = Measurer(self.loaded, self.model, examples, EagerRuntime())
        self.discovery = discover(self.loaded, self.model, examples)
        self.heard = []
        self.profiled = profile_workload(
            self.measurer, self.discovery, objective, self.loaded.calibration(), formats,
            lambda what, share: self.heard.append((what, share)),
        )  # fmt: skip
        self.profile = self.profiled.profile
        self.space = search_space(self.discovery, self.profile, Goal("memory", 0.1), None)

    def plan(self, assignment):
        architecture = architecture_fingerprint(self.model)
        return plan_of(self.discovery, architecture, self.profile, assignment, self.profiled.calibrations)


@pytest.fixture(scope="module")
def setup():
    return Setup()


def test_units_and_what_no_kernel_takes(setup):
    assert [unit.name for unit in setup.discovery.units] == ["{table,head}", "{gate,up}", "down", "conv"]
    assert setup.discovery.left == {"norm": "no kernel for LayerNorm"}


def test_every_unit_and_format_is_native_emulated_or_refused_with_a_reason(setup):
    profile = setup.profile
    for u in range(4):
        for k, name in enumerate(FORMAT_NAMES):
            named = bool(profile.implementations[u][k])
            timed = bool(np.isfinite(profile.time[u, k]))
            if name not in FORMATS:
                assert not named and not timed and profile.reasons[u][k]
            elif timed:  # native
                assert named and profile.reasons[u][k] == "" and profile.time[u, k] > 0
                assert profile.bytes[u, k] > 0 and profile.error[u, k] >= 0
            elif named:  # emulated: judged, never timed
                assert profile.reasons[u][k].startswith("emulated") and profile.error[u, k] > 0
            else:
                assert profile.reasons[u][k] and np.isnan(profile.error[u, k])
    assert np.isfinite(profile.time[:, K["fp32"]]).all()
    assert np.isnan(profile.time[:, K["fp8_e4m3"]]).all()


def test_a_unit_as_it_came_loses_nothing_and_holds_what_it_held(setup):
    profile, model = setup.profile, setup.model
    assert (profile.error[:, K["fp32"]] < 1e-6).all()
    assert profile.baseline_bytes == held_bytes(model)
    held = [
        held_bytes(m) for m in (model.table, nn.ModuleList([model.gate, model.up]), model.down, model.conv)
    ]
    fp32 = profile.bytes[:, K["fp32"]]
    assert all(found >= expected for found, expected in zip(fp32, held, strict=True))  # packing may pad
    memory = Setup("memory", formats=("fp32",)).profile
    assert memory.bytes[:, K["fp32"]].tolist() == held


def test_lower_precision_loses_more_and_holds_less(setup):
    error, held = setup.profile.error, setup.profile.bytes
    body = 1  # {gate,up}
    assert error[body, K["bf16"]] > 1e-4 > error[body, K["fp32"]]
    assert error[body, K["int8_weight_only"]] > error[body, K["fp16_weight"]]
    assert error[body, K["fp8_e4m3"]] > error[body, K["bf16"]]
    assert held[body, K["bf16"]] <= held[body, K["fp32"]] / 2 + 64
    assert held[body, K["int8_weight_only"]] < held[body, K["bf16"]]


def test_the_bytes_of_a_plan_are_known_before_it_runs(setup):
    memory = Setup("memory")
    rng = np.random.default_rng(0)
    plans = [tuple(int(rng.choice(memory.space.choices(u))) for u in range(4)) for _ in range(6)]
    for assignment in [memory.space.baseline, *plans]:
        with memory.measurer.executable(memory.plan(assignment)) as candidate:
            assert candidate.held_bytes() == memory.profile.plan_bytes(memory.space, assignment)


def test_every_plan_of_the_space_runs(setup):
    for k in range(len(FORMAT_NAMES)):
        found = setup.measurer.measure(setup.plan(setup.space.uniform(k)), "search", QUICK)
        assert found.quality_drop < 0.2


def test_static_formats_carry_the_ranges_seen_over_examples_and_calibration(setup):
    plan = setup.plan(setup.space.uniform(K["int8_static_7bit"]))
    table = setup.model.table.weight
    for unit in plan.units:
        for module in unit.modules:
            assert (module.input_range is not None) == (unit.format == "int8_static_7bit")
            if module.path in ("gate", "up") and module.input_range:
                assert module.input_range == (float(table[:32].min()), float(table[:32].max()))
    assert "table" not in setup.profiled.calibrations  # indices have no range


def test_features_describe_units_within_bounds(setup):
    features = setup.profile.features
    assert features.shape == (4, len(FEATURES)) and features.dtype == np.float32
    assert np.isfinite(features).all() and np.abs(features).max() <= 4.0
    column = {name: features[:, index] for index, name in enumerate(FEATURES)}
    assert column["is_conv2d"].tolist() == [0, 0, 0, 1] and column["is_embedding"].tolist() == [1, 0, 0, 0]
    assert column["depth"].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert column["siblings"].tolist() == [0.5, 0.5, 0.25, 0.25]


def test_profiling_changes_nothing_and_says_how_far_it_is(setup):
    twin = Profiling().build_model()
    torch.manual_seed(0)
    fresh = Setup(formats=("fp32", "int8_weight_only"))
    before = {name: value.clone() for name, value in fresh.model.state_dict().items()}
    profile_workload(fresh.measurer, fresh.discovery, "latency", formats=("fp32", "bf16"))
    assert all(torch.equal(value, before[name]) for name, value in fresh.model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in fresh.model.modules())
    assert type(fresh.model.gate) is type(twin.gate)
    shares = [share for _, share in setup.heard]
    assert shares[0] == 0.0 and shares == sorted(shares) and shares[-1] <= 1.0


def test_a_model_that_reads_a_weight_is_refused_the_kernels_that_hide_it():
    """Where a replacement lacks what the model reads, that module is refused and the others are not."""

    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.read, self.plain = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            if type(self.read) is not nn.Linear:
                raise TypeError("read must be a Linear")
            return self.plain(self.read(x))

    class Reading(Workload):
        def build_model(self):
            return Reads()

        def example_inputs(self):
            return torch.ones(2, 64)

    found = Setup(workload=type("W", (Reading,), {"calibration": lambda self: [torch.ones(1, 64)]}))
    k = K["bf16"]
    assert "the model does not run with it: TypeError: read must be a Linear" in found.profile.reasons[0][k]
    assert found.profile.implementations[1][k] and found.profile.reasons[1][k] == ""


def test_a_calibration_batch_that_the_model_rejects_is_the_users_mistake():
    class Wrong(Profiling):
        def calibration(self):
            return [torch.full((1, 2), 99)]

    with pytest.raises(
        WorkloadError, match=r"rejects a batch of calibration\(\) \(int64\[1, 2\]\): IndexError"
    ):
        Setup(workload=Wrong, formats=("bf16",))


def test_a_module_that_only_the_last_of_many_examples_reaches_is_judged():
    class Long(nn.Module):
        def __init__(self):
            super().__init__()
            self.always, self.rarely = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            return self.rarely(self.always(x)) if len(x) == 6 else self.always(x)

    class Many(Workload):
        def build_model(self):
            return Long()

        def example_inputs(self):
            return [Example(torch.randn(rows, 64)) for rows in range(1, 7)]

        def calibration(self):
            return [torch.randn(7, 64)]

    error = Setup(workload=Many, formats=("bf16",)).profile.error
    assert np.all(error[:, K["bf16"]] > 0.0)


def test_weights_beyond_a_format_are_refused_where_they_are():
    class Large(Profiling):
        def build_model(self):
            model = Net()
            with torch.no_grad():
                model.down.weight[0, 0] = 1e6
            return model

    found = Setup(workload=Large, formats=("fp32", "fp16", "bf16"))
    assert "65504" in found.profile.reasons[2][K["fp16"]]
    assert found.profile.reasons[2][K["bf16"]] == ""


def test_the_space_allows_what_was_asked_for_and_each_units_own(setup):
    goal = Goal("memory", 0.1)
    asked = search_space(setup.discovery, setup.profile, goal, ("bf16",))
    for u in range(4):  # one that is slower, larger and less exact than another is dropped
        assert {K["fp32"]} <= set(asked.choices(u)) <= {K["fp32"], K["bf16"]}
    assert K["bf16"] in asked.choices(1)
    whole = search_space(setup.discovery, setup.profile, goal, None)
    assert not whole.mask[:, K["fp8_e4m3"]].any()  # emulated
    with pytest.raises(SettingError, match="formats asks for fp8_e4m3, which no unit can run here"):
        search_space(setup.discovery, setup.profile, goal, ("fp8_e4m3",))


def test_assignments_and_plans_say_the_same(setup):
    assignment = tuple(setup.space.choices(u)[-1] for u in range(4))
    plan = setup.plan(assignment)
    assert assignment_of([unit.format for unit in plan.units]) == assignment
    assert plan.left == setup.discovery.left
    unchanged = as_given(setup.discovery, plan.architecture)
    assert assignment_of([unit.format for unit in unchanged.units]) == setup.space.baseline
    assert {m.implementation for unit in unchanged.units for m in unit.modules} == {"aten"}
    with pytest.raises(PlanError, match="unknown format 'fp3'"):
        assignment_of(["fp3"])


def test_a_kernel_that_the_guard_leaves_out_is_refused_with_its_reason(setup):
    entered = []

    @contextmanager
    def guard(what):
        entered.append(what)
        yield "no time" if what.startswith("bf16") else ""

    profile = profile_workload(
        setup.measurer, setup.discovery, "memory", formats=("bf16", "fp16_weight"), guard=guard
    ).profile
    assert len(set(entered)) == len(entered) > 2
    linear = 1
    assert profile.reasons[linear][K["bf16"]] == "no time" and not profile.implementations[linear][K["bf16"]]
    assert profile.implementations[linear][K["fp16_weight"]]
