"""`torch.compile` as a runtime: real graphs by inductor, of models so small that each takes seconds."""

import gc
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch import nn

from autoprec import apply_plan
from autoprec.envs.compile_profile import profile_compiled
from autoprec.envs.plans import make_plan
from autoprec.envs.profile import profile_workload
from autoprec.envs.timing import TimingSettings
from autoprec.errors import CandidateError, RuntimeRefusedError
from autoprec.kernels.registry import Level, implementations, worst
from autoprec.plan import COMPILE, EAGER
from autoprec.prepare import prepare

QUICK = TimingSettings(target=0.05, max_seconds=0.3)
pytest.importorskip("torch._inductor")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 64)
        self.up = nn.Linear(64, 128)
        self.down = nn.Linear(128, 64, bias=False)
        self.mix = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, ids):
        hidden = self.table(ids)
        hidden = hidden + self.down(torch.relu(self.up(hidden)))
        return self.mix(hidden.view(*ids.shape, 4, 4, 4).flatten(0, 1))


class Texts:
    """Timed at two shapes, judged at others."""

    def build_model(self):
        torch.manual_seed(0)
        return Net().eval()

    def example_inputs(self):
        return {"short": torch.arange(8).view(2, 4), "long": torch.arange(12).view(3, 4)}

    def run(self, model, inputs):
        return [model(ids) for ids in inputs.values()]

    def quality(self, model):
        return -sum(float(model(torch.arange(n * 4).view(n, 4)).square().mean()) for n in (5, 6, 7))


def prepared_for(workload):
    found = prepare(workload, "latency")
    try:
        found.use_runtime(COMPILE)
    except RuntimeRefusedError as error:
        pytest.skip(str(error))
    return found


@pytest.fixture(scope="module")
def prepared():
    return prepared_for(Texts)


def plan_for(prepared, chosen=(), runtime=COMPILE):
    """Return a plan; `chosen` maps a module to (format, implementation)."""
    chosen = dict(chosen)
    picked = [chosen.get(unit.modules[0].path, ("fp32", "aten")) for unit in prepared.discovery.units]
    return make_plan(
        prepared.discovery,
        prepared.context.architecture,
        [name for name, _ in picked],
        [
            [kernel] * len(unit.modules)
            for (_, kernel), unit in zip(picked, prepared.discovery.units, strict=True)
        ],
        prepared.seen.calibrations,
        runtime,
    )


class Many(nn.Module):
    """Enough modules of each kind that a few plans hold every kernel."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50, 64) for _ in range(2))
        self.linears = nn.ModuleList(nn.Linear(64, 64) for _ in range(10))
        self.convolutions = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(5))

    def forward(self, ids):
        hidden = sum(table(ids) for table in self.tables)
        for linear in self.linears:
            hidden = hidden + torch.relu(linear(hidden))
        hidden = hidden.view(*ids.shape, 4, 4, 4).flatten(0, 1)
        for convolution in self.convolutions:
            hidden = hidden + torch.relu(convolution(hidden))
        return hidden


def kernels(prepared):
    """Return plans that together hold every native kernel: module to (format, implementation)."""
    by_operation = {}
    for unit in prepared.discovery.units:
        for module in unit.modules:
            by_operation.setdefault(module.operation, []).append(module)
    rounds = {}
    for operation, modules in by_operation.items():
        native = [
            (kernel.format, kernel.name)
            for kernel in implementations(operation)
            if worst(kernel.support(shape, torch.device("cpu")) for shape in modules[0].shapes).level
            is Level.NATIVE
        ]
        for index, kernel in enumerate(native):
            rounds.setdefault(index // len(modules), {})[modules[index % len(modules)].path] = kernel
    return list(rounds.values())


def test_every_format_computes_in_one_graph_what_it_computes_in_eager():
    prepared = prepared_for(workload(Many, torch.arange(8).view(2, 4)))
    for chosen in kernels(prepared):
        compiling, plain = plan_for(prepared, chosen), plan_for(prepared, chosen, EAGER)
        with (
            prepared.measurer.executable(compiling) as compiled,
            prepared.measurer.executable(plain) as eager,
        ):
            assert compiled.applied() == eager.applied()
            for shape in ((2, 4), (6, 4), (9, 8)):
                ids = torch.randint(0, 50, shape)
                with torch.no_grad():
                    expected = eager.model(ids)
                    gap = (compiled.model(ids) - expected).norm() / expected.norm()
                assert gap < 1e-2, chosen  # bf16 is rounded less often where layers are fused
            assert (compiled.graphs, compiled.idle()) == (2, frozenset()), chosen


def test_modes_and_shapes_share_the_fewest_graphs(prepared):
    with prepared.measurer.executable(plan_for(prepared)) as executable:
        assert executable.graphs == 2 and executable.compile_seconds > 0
        found = prepared.measurer.time(None, executable, QUICK)
        assert found.ratio > 0 and executable.graphs == 2
        with torch.no_grad():
            prepared.loaded.quality(executable.model, "search")
        with torch.inference_mode():
            ids = torch.arange(8).view(2, 4)  # an inference tensor
            assert ids.is_inference()
            executable.model(ids)
            executable.model(ids=torch.arange(24).view(6, 4))
        assert executable.graphs == 3
        executable.model(torch.arange(8).view(2, 4))  # gradients are on: it has none
        assert executable.graphs == 3


def test_what_is_held_is_what_the_module_tree_holds_and_the_graphs_beside_it(prepared):
    with prepared.measurer.executable(plan_for(prepared)) as executable:
        whole = executable.held_bytes()
    assert whole >= prepared.measurer.baseline_bytes
    with prepared.measurer.executable(plan_for(prepared, {"up": ("int8_dynamic", "fbgemm")})) as executable:
        assert whole - executable.held_bytes() > 64 * 128 * 2


def test_nothing_is_left_behind(prepared):
    model = prepared.measurer.model
    before = {name: id(value) for name, value in model.__dict__.items()}
    settings = torch._dynamo.config.get_config_copy(), torch._inductor.config.get_config_copy()
    with prepared.measurer.executable(plan_for(prepared, {"up": ("bf16", "aten")})) as executable:
        clone = executable.model
        clone(torch.arange(24).view(6, 4))
    assert (torch._dynamo.config.get_config_copy(), torch._inductor.config.get_config_copy()) == settings
    assert {name: id(value) for name, value in model.__dict__.items()} == before
    assert not any(module._forward_pre_hooks for module in [*model.modules(), *clone.modules()])
    del clone, executable
    gc.collect()
    assert not torch._dynamo.eval_frame._debug_get_cache_entry_list(Net.forward.__code__)


def workload(model, inputs=None):
    given = torch.ones(2, 4) if inputs is None else inputs
    return type("Made", (), {"build_model": lambda self: model(), "example_inputs": lambda self: given})


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        x = self.layer(x)
        return x + 1 if float(x.detach().sum()) > 0 else x - 1


class Disabled(Branching):
    @torch.compiler.disable
    def forward(self, x):
        return self.layer(x)


class Aside(Branching):
    """Reads the weight of its layer instead of calling it, once `aside` is set."""

    aside = False

    def forward(self, x):
        return torch.nn.functional.linear(x, self.layer.weight) if self.aside else self.layer(x)


def test_a_model_that_dynamo_breaks_up_runs_in_pieces():
    made = prepared_for(workload(Branching))
    with made.measurer.executable(plan_for(made)) as executable:
        assert executable.graphs >= 1
        for sign in (1.0, -1.0):
            x = sign * torch.ones(2, 4)
            torch.testing.assert_close(executable.model(x), made.measurer.model(x).detach())


def test_a_model_of_which_nothing_compiles_is_refused_with_the_reason():
    made = prepared_for(workload(Disabled))
    with (
        pytest.raises(CandidateError, match=r"captures no graph of this model: .*disable"),
        made.measurer.executable(plan_for(made)),
    ):
        pass

    class Parts(workload(Branching)):
        def run(self, model, inputs):
            return model.layer(inputs)

    made = prepared_for(Parts)
    with (
        pytest.raises(CandidateError, match="calls parts of it, never the model itself"),
        made.measurer.executable(plan_for(made)),
    ):
        pass
    eager = profile_workload(made.measurer, made.discovery, "latency")
    with pytest.raises(RuntimeRefusedError, match=r"does not run the model as it came: .*parts of it"):
        profile_compiled(made.measurer, made.discovery, eager, made.context.architecture)


def test_a_replaced_module_that_does_not_run_fails_the_plan():
    made = prepared_for(workload(Aside))
    made.measurer.model.aside = True
    plan = plan_for(made, {"layer": ("int8_weight_only", "dequantize")})
    with (
        pytest.raises(CandidateError, match="layer did not run after being replaced"),
        made.measurer.executable(plan),
    ):
        pass


def test_the_profile_is_the_eager_one_at_the_compiled_speed(prepared):
    eager = profile_workload(prepared.measurer, prepared.discovery, "latency")
    found, seconds = profile_compiled(prepared.measurer, prepared.discovery, eager, "0" * 32)
    ratio = found.profile.time / eager.profile.time
    assert found.runtime == COMPILE and seconds > 0
    assert np.nanmin(ratio) > 0 and np.nanmax(ratio) == pytest.approx(np.nanmin(ratio))
    assert found.profile.implementations == eager.profile.implementations


def test_a_plan_is_applied_and_then_compiled_by_its_user(prepared):
    model = Texts().build_model()
    plan = plan_for(prepared, {"up": ("int8_dynamic", "fbgemm"), "down": ("fp32", "onednn_packed")})
    with pytest.warns(UserWarning, match="no evidence"):
        applied = apply_plan(model, plan)
    assert applied.modules["up"] == ("int8_dynamic", "fbgemm")
    ids = torch.arange(8).view(2, 4)
    with torch.no_grad():
        expected = model(ids)
        found = torch.compile(model, options={"freezing": True}, fullgraph=True)(ids)
    torch._dynamo.reset()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("compiler", "said"), [
    (None, "finds no C++ compiler: install a C++ compiler"),
    ("#!/bin/sh\ncase \"$1\" in --version) exit 0;; esac\nexit 1\n", "install a C++ compiler"),
])  # fmt: skip
def test_without_a_working_compiler_the_runtime_is_refused(tmp_path, compiler, said):
    if compiler is not None:
        (tmp_path / "g++").write_text(compiler)
        (tmp_path / "g++").chmod(0o755)
    code = """
        import torch
        from autoprec.errors import RuntimeRefusedError
        from autoprec.runtimes.compiled import CompileRuntime
        try:
            CompileRuntime(lambda model: None)
        except RuntimeRefusedError as error:
            print(error)
    """
    path = f"{tmp_path}:/bin" if compiler else str(tmp_path)
    given = {
        name: value for name, value in os.environ.items() if name not in ("CXX", "TORCHINDUCTOR_CACHE_DIR")
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=given | {"PATH": path, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said in done.stdout, done.stdout + done.stderr
