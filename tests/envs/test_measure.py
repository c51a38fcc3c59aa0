import random
import time

import numpy as np
import pytest
import torch
from torch import nn

from autoprec.comparing import misfit, outline, refuse_difference, relative_error
from autoprec.envs.measure import Measurer
from autoprec.envs.plans import as_given, make_plan
from autoprec.envs.process_state import process_state_kept
from autoprec.envs.timing import TimingSettings
from autoprec.envs.units import discover
from autoprec.errors import CandidateError, RuntimeRefusedError, WorkloadError
from autoprec.finding import load_workload
from autoprec.fingerprint import architecture_fingerprint
from autoprec.kernels.registry import held_bytes
from autoprec.runtimes.eager import EagerRuntime
from autoprec.workload import Example, Workload

QUICK = TimingSettings(max_seconds=0.02, min_pairs=3, max_pairs=3, min_sample_seconds=0.0, warmup=1)


class Net(Workload):
    """Two layers, judged by how close the output is to a constant."""

    def build_model(self):
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))

    def example_inputs(self):
        return torch.randn(4, 64)


class Judged(Net):
    def quality(self, model):
        return float(model(torch.ones(2, 64)).sum())


class Setup:
    """A workload made ready, and plans of it."""

    def __init__(self, workload, calibration=None):
        self.loaded = load_workload(workload)
        self.model = self.loaded.build_model()
        self.examples = self.loaded.examples("latency")
        self.measurer = Measurer(self.loaded, self.model, self.examples, EagerRuntime(), calibration)
        self.discovery = discover(self.loaded, self.model, self.examples)
        self.architecture = architecture_fingerprint(self.model)

    def plan(self, format_name="bf16", implementation="aten", calibrations=None):
        units = self.discovery.units
        names = [[implementation] * len(unit.modules) for unit in units]
        return make_plan(
            self.discovery, self.architecture, [format_name] * len(units), names, calibrations or {}
        )

    def measure(self, plan=None, **options):
        return self.measurer.measure(plan or self.plan(), "search", QUICK, **options)


def fails(setup, says, plan=None):
    """Measure a plan that fails: a result with one sentence, and the baseline is as good as before."""
    before = {name: value.clone() for name, value in setup.model.state_dict().items()}
    with pytest.raises(CandidateError) as caught:
        setup.measure(plan)
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in setup.model.state_dict().items())
    return str(caught.value)


class TestARun:
    def test_its_figures(self):
        setup = Setup(Judged)
        found = setup.measure()
        assert found.timing.low <= found.timing.ratio <= found.timing.high and found.timing.pairs == 3
        assert setup.measurer.baseline_bytes == held_bytes(setup.model) == 4 * (64 * 64 + 64 + 64 * 32 + 32)
        assert found.held_bytes == setup.measurer.baseline_bytes // 2
        exact = setup.measurer.baseline_quality("search")
        assert found.quality_drop == exact - found.quality != 0.0
        assert found.reported == {}

    def test_a_plan_that_changes_nothing_loses_nothing(self):
        setup = Setup(Judged)
        found = setup.measure(as_given(setup.discovery, setup.architecture))
        assert found.quality_drop == 0.0 and found.held_bytes == setup.measurer.baseline_bytes

    def test_emulated_plans_are_judged_and_not_timed(self):
        setup = Setup(Judged)
        found = setup.measure(setup.plan("fp8_e4m3", "triton"), timed=False)
        assert found.timing is None and found.quality_drop != 0.0

    def test_without_a_quality_the_outputs_are_compared(self):
        setup = Setup(Net, calibration=[torch.randn(3, 64)])
        assert setup.measurer.baseline_quality("search") == 1.0
        assert 0.0 < setup.measure().quality_drop < 0.05

    def test_metrics_are_reported_when_asked_for(self):
        class Reports(Judged):
            def metrics(self, model):
                return {"first": float(model(torch.ones(1, 64))[0, 0])}

        setup = Setup(Reports)
        assert setup.measurer.baseline_reported("search").keys() == {"first"}
        assert setup.measure(reported=True).reported.keys() == {"first"}
        assert setup.measure().reported == {}

    def test_each_split_has_its_own_baseline(self):
        class Splits(Net):
            def quality(self, model, split="search"):
                return {"search": 1.0, "final": 2.0}[split]

        measurer = Setup(Splits).measurer
        assert measurer.splits == ("search", "final")
        assert [measurer.baseline_quality(split) for split in measurer.splits] == [1.0, 2.0]
        assert Setup(Judged).measurer.splits == Setup(Net).measurer.splits == ("search",)

    def test_examples_run_in_proportion_to_their_weights(self):
        calls = []

        class Weighted(Net):
            def example_inputs(self):
                return [Example(torch.ones(1, 64), 3.0), Example(torch.ones(2, 64), 1.0)]

            def run(self, model, inputs):
                calls.append(len(inputs))
                return model(inputs)

        setup = Setup(Weighted)
        call = setup.measurer._timed_call(setup.model)
        calls.clear()
        call()
        assert calls == [1, 1, 1, 2]

    @pytest.mark.parametrize(("weights", "times"), [
        ([3, 2], [3, 2]), ([1, 1.5, 99], [2, 3, 198]), ([0.7, 0.3], [7, 3]), ([1, 1.01], [1, 1]), ([5], [1]),
    ])  # fmt: skip
    def test_a_proportion_is_kept_and_times_are_those_of_one_run(self, monkeypatch, weights, times):
        now = 0.0

        class Weighted(Net):
            def example_inputs(self):
                return [Example(torch.ones(1 + i, 64), weight) for i, weight in enumerate(weights)]

            def run(self, model, inputs):
                nonlocal now
                calls.append(len(inputs))
                now += len(inputs)  # seconds: as many as rows
                return model(inputs)

        calls = []
        setup = Setup(Weighted)
        calls.clear()
        setup.measurer._timed_call(setup.model)()
        assert [calls.count(1 + i) for i in range(len(weights))] == times
        monkeypatch.setattr(time, "perf_counter", lambda: now)
        with setup.measurer.executable(setup.plan()) as candidate:
            timing = setup.measurer.time(None, candidate, QUICK)
        mean = sum(n * (1 + i) for i, n in enumerate(times)) / sum(times)
        assert timing.ratio == 1.0
        assert (timing.a_seconds, timing.b_seconds) == (pytest.approx(mean), pytest.approx(mean))


class TestWhatRan:
    def test_what_is_applied_is_read_back(self):
        setup = Setup(Net)
        with setup.measurer.executable(setup.plan("int8_weight_only", "dequantize")) as candidate:
            assert candidate.applied() == dict.fromkeys(("0", "2"), ("int8_weight_only", "dequantize"))
            assert candidate.idle() == frozenset()
        assert not candidate.model.state_dict()  # it is freed

    def test_a_model_that_keeps_its_own_layers_is_found_out(self):
        """Replacing a layer in the module tree does nothing where forward() does not go through the tree."""

        class Listed(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(64, 64)
                self.order = [self.layer]

            def forward(self, x):
                return self.order[0](x)

        class Hidden(Net):
            def build_model(self):
                return Listed()

        setup = Setup(Hidden)
        fails(setup, "not applied as asked: layer did not run after being replaced")
        setup.measure(as_given(setup.discovery, setup.architecture))

    def test_a_model_that_refuses_replacement_is_found_out(self):
        class Stubborn(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(64, 64)

            def __setattr__(self, name, value):
                if name != "layer" or "layer" not in self._modules:
                    super().__setattr__(name, value)

            def register_module(self, name, module):
                if name not in self._modules:
                    super().register_module(name, module)

            def add_module(self, name, module):
                self.register_module(name, module)

            def forward(self, x):
                return self.layer(x)

        class Refuses(Net):
            def build_model(self):
                return Stubborn()

        fails(Setup(Refuses), "not applied as asked: layer should run bf16/aten, found ('fp32', 'aten')")

    def test_an_unknown_kernel_is_a_failure(self):
        setup = Setup(Net)
        assert "known: " in fails(setup, "no implementation 'magic'", setup.plan("bf16", "magic"))

    def test_a_model_that_cannot_be_copied_is_a_failure_with_advice(self):
        class Locked(nn.Sequential):
            def __deepcopy__(self, memo):
                raise TypeError("no copies")

        class Uncopied(Net):
            def build_model(self):
                return Locked(nn.Linear(64, 64))

        fails(Setup(Uncopied), "make it work with copy.deepcopy")


class Fails(Net):
    """Judges the model as it came well; a candidate makes `why` happen."""

    def __init__(self, why):
        self.why = why

    def quality(self, model):
        return 1.0 if type(model[0]) is nn.Linear else self.why(model)


class TestFailures:
    @pytest.mark.parametrize(("why", "says"), [
        (lambda model: float("nan"), "quality(model) returned nan"),
        (lambda model: float("inf"), "quality(model) returned inf"),
        (lambda model: "good", "returned a string"),
        (lambda model: None, "returned an object of type NoneType"),
        (lambda model: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda model: model[7], "IndexError"),
        (lambda model: exit(3), "called exit(3)"),
        (lambda model: torch.empty(10**15), "out of memory: RuntimeError"),
        (lambda model: np.empty(10**15), "out of memory"),
        (lambda model: model(torch.ones(1, 1)), "RuntimeError: "),
    ])  # fmt: skip
    def test_a_quality_that_fails_is_a_result_with_a_reason(self, why, says):
        setup = Setup(Fails(why))
        fails(setup, says)
        setup.measure(as_given(setup.discovery, setup.architecture))  # and the next run goes on

    def test_reasons_are_one_short_line(self):
        def why(model):
            raise ValueError("first\nsecond " + "x" * 10_000)

        assert len(fails(Setup(Fails(why)), "ValueError: first second xxx")) < 400

    def test_stopping_is_no_failure(self):
        def why(model):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Setup(Fails(why)).measure()

    @pytest.mark.parametrize(("change", "says"), [
        (lambda out: out[None], "float32[1, 4, 64], expected float32[4, 64]"),
        (lambda out: out.double(), "float64[4, 64], expected float32[4, 64]"),
        (lambda out: (out, out), "0 float32[4, 64], expected float32[4, 64]"),
        (lambda out: None, "nothing, expected float32[4, 64]"),
    ])  # fmt: skip
    def test_outputs_of_another_make_fail_the_plan(self, change, says):
        class Own(nn.Sequential):
            def forward(self, x):
                out = super().forward(x)
                return out if type(self[0]) is nn.Linear else change(out)

        class Changes(Net):
            def build_model(self):
                return Own(nn.Linear(64, 64))

            def quality(self, model):  # which sees nothing of it
                return 1.0

        setup = Setup(Changes)
        fails(setup, f"the output for float32[4, 64] is not made as the model's own: {says}")
        setup.measure(as_given(setup.discovery, setup.architecture))

    def test_outputs_of_another_make_for_calibration_data_fail_a_plan_that_is_judged_by_it(self):
        class Own(nn.Sequential):
            def forward(self, x):
                out = super().forward(x)
                return out if type(self[0]) is nn.Linear or len(x) == 4 else out.sum(0)

        class Changes(Net):
            def build_model(self):
                return Own(nn.Linear(64, 64))

        fails(Setup(Changes, [torch.ones(3, 64)]), "float32[64], expected float32[3, 64]")

    def test_what_holds_no_tensor_is_of_one_make(self):
        class Nothing(Judged):
            def run(self, model, inputs):
                return str(model(inputs))

        assert Setup(Nothing).measure().quality_drop != 0.0

    def test_nan_in_the_output_fails_the_plan(self):
        """Weights of 60000 fit fp16, their products with inputs of 10 do not."""

        class Overflows(Net):
            def build_model(self):
                model = nn.Sequential(nn.Linear(64, 64, bias=False))
                nn.init.constant_(model[0].weight, 6e4)
                return model

            def example_inputs(self):
                return torch.full((1, 64), 10.0)

        setup = Setup(Overflows)
        fails(setup, "NaN or infinity in the output for float32[1, 64]", setup.plan("fp16"))

    def test_nan_on_calibration_data_alone_fails_a_plan_that_is_judged_by_it(self):
        setup = Setup(Net, calibration=[torch.full((1, 64), 1e6)])
        fails(
            setup, "NaN or infinity in the output for an example or a calibration batch", setup.plan("fp16")
        )

    def test_a_kernel_that_refuses_a_weight_fails_the_plan(self):
        class TooLarge(Net):
            def build_model(self):
                model = nn.Sequential(nn.Linear(64, 64))
                nn.init.constant_(model[0].weight, 1e30)
                return model

        setup = Setup(TooLarge)
        assert fails(setup, "fp16", setup.plan("fp16")).startswith("0: ")


class TestTheBaseline:
    def test_inputs_that_the_model_rejects_are_the_users_mistake(self):
        class Wrong(Net):
            def example_inputs(self):
                return torch.ones(2, 5)

        loaded = load_workload(Wrong)
        model = loaded.build_model()
        measurer = Measurer(loaded, model, loaded.examples("latency"), EagerRuntime())
        with pytest.raises(
            WorkloadError, match="the example inputs raised on the model as it came: RuntimeError"
        ):
            measurer.check_baseline()

    def test_a_model_that_gives_nan_as_it_came_is_refused(self):
        class Broken(Net):
            def build_model(self):
                model = super().build_model()
                nn.init.constant_(model[0].weight, float("nan"))
                return model

        with pytest.raises(WorkloadError, match="model as it came: NaN or infinity in the output"):
            Setup(Broken).measurer.check_baseline()

    @pytest.mark.parametrize("method", ["quality", "metrics"])
    @pytest.mark.parametrize(("value", "says"), [
        (lambda: float("nan"), "returned nan"), (lambda: torch.ones(1), "returned an object of type Tensor"),
        (lambda: "x", "returned a string"), (lambda: None, "NoneType"),
        (lambda: 1 / 0, "raised on the model as it"),
    ])  # fmt: skip
    def test_what_cannot_judge_the_model_as_it_came_is_refused(self, method, value, says):
        judge = value if method == "quality" else lambda: {"m": value()}
        kind = type("Bad", (Net,), {method: lambda self, model: judge()})
        measurer = Setup(kind).measurer
        with pytest.raises(WorkloadError, match=rf"{method}\(model\)") as caught:
            (measurer.baseline_quality if method == "quality" else measurer.baseline_reported)("search")
        assert says in str(caught.value) and "\n" not in str(caught.value)

    def test_outputs_without_a_float_need_a_quality(self):
        class Indices(Net):
            def run(self, model, inputs):
                return model(inputs).argmax(dim=-1)

        with pytest.raises(WorkloadError, match=r"holds no float tensor to compare; define quality\(model\)"):
            Setup(Indices).measurer.baseline_quality("search")

    @pytest.mark.parametrize("change", [
        lambda model: model.double().float(),
        lambda model: model.bfloat16(),
        lambda model: model[2].weight.detach().zero_(),
        lambda model: nn.init.zeros_(model[2].bias),
        lambda model: setattr(model[2], "bias", nn.Parameter(torch.zeros(32))),
    ])  # fmt: skip
    def test_a_quality_that_changes_the_model_is_found_out_before_anything_is_compared(self, change):
        class Changes(Net):
            def quality(self, model):
                change(model)
                return 1.0

        with pytest.raises(
            WorkloadError, match=r"changed parameter '.*' of the model in place.*work on a copy"
        ):
            Setup(Changes).measurer.baseline_quality("search")

    def test_a_quality_that_changes_shared_weights_of_a_candidate_ends_the_job(self):
        def why(model):
            model[0].weight.mul_(2)
            return 1.0

        class Half(Net):
            """Only its second layer is replaced, so the first still is the baseline's own."""

            exclude = ("0",)

            def quality(self, model):
                return 1.0 if type(model[2]) is nn.Linear else why(model)

        with pytest.raises(WorkloadError, match=r"changed parameter '0\.weight'"):
            Setup(Half).measure()

    def test_judging_leaves_the_model_in_eval_mode(self):
        class Trains(Net):
            def build_model(self):
                return nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.9))

            def quality(self, model):
                model.train()
                return 1.0

        setup = Setup(Trains)
        setup.measurer.baseline_quality("search")
        assert not any(module.training for module in setup.model.modules())
        with setup.measurer.executable(setup.plan()) as candidate:
            assert not any(module.training for module in candidate.model.modules())

    def test_an_embedding_that_renormalises_itself_is_no_change_of_the_workloads(self):
        class Renormalised(Net):
            def build_model(self):
                return nn.Sequential(nn.Embedding(9, 64, max_norm=1.0), nn.Linear(64, 4))

            def example_inputs(self):
                return torch.arange(4)

        Setup(Renormalised).measurer.baseline_quality("search")


class TestTheProcess:
    def state(self):
        return (
            torch.get_num_threads(), torch.get_default_dtype(), torch.backends.quantized.engine,
            torch.is_grad_enabled(), torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(), torch.get_rng_state().tolist(),
            np.random.get_state()[1].tolist(), random.getstate(),
        )  # fmt: skip

    @staticmethod
    def upset():
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.set_default_dtype(torch.float64)
        engines = set(torch.backends.quantized.supported_engines) - {torch.backends.quantized.engine, "none"}
        torch.backends.quantized.engine = min(engines)
        torch.set_grad_enabled(not torch.is_grad_enabled())
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(7), np.random.seed(7), random.seed(7)

    def test_what_code_under_test_changes_is_put_back(self):
        before = self.state()
        with pytest.raises(ValueError, match="stop"), process_state_kept():
            self.upset()
            assert self.state() != before
            raise ValueError("stop")
        assert self.state() == before

    def test_a_run_that_fails_halfway_leaves_nothing_changed(self):
        def why(model):
            self.upset()
            return 1 / 0

        before = self.state()
        fails(Setup(Fails(why)), "ZeroDivisionError")
        assert self.state() == before

    def test_timing_sees_the_process_as_it_was_before_judging(self):
        seen = []

        class Upsets(Judged):
            def run(self, model, inputs):
                seen.append((torch.get_num_threads(), torch.get_default_dtype()))
                return model(inputs)

            def quality(self, model):
                TestTheProcess.upset()
                return 1.0

            def metrics(self, model):
                TestTheProcess.upset()
                return {}

        before = (torch.get_num_threads(), torch.get_default_dtype())
        setup = Setup(Upsets)
        seen.clear()
        setup.measure(reported=True)
        assert set(seen) == {before} and len(seen) > 8

    def test_qualities_that_draw_random_numbers_draw_the_same_for_every_candidate(self):
        class Draws(Net):
            def quality(self, model):
                return float(torch.rand(()) + np.random.rand() + random.random())

        setup = Setup(Draws)
        torch.rand(5)
        assert setup.measure().quality_drop == setup.measure().quality_drop == 0.0


def test_relative_error():
    one = torch.tensor([3.0, 4.0])
    assert relative_error(one, one) == 0.0
    assert relative_error(torch.zeros(2), one) == 1.0
    assert relative_error(torch.tensor([3.0, 4.5]), one) == pytest.approx(0.1)
    assert relative_error(torch.tensor([float("nan"), 0.0]), one) == float("inf")
    assert relative_error(torch.tensor([0.5]), torch.zeros(1)) == 0.5
    assert relative_error(one.bfloat16(), one) == 0.0
    assert relative_error(1.1e30 * one, 1e30 * one) == pytest.approx(0.1)
    assert relative_error(torch.stack([one, one]), one) == float("inf")
    assert relative_error(one + 1e-12, one.double()) == 0.0
    assert relative_error(one.double() + 1e-12, one.double()) == pytest.approx(2.8e-13, rel=0.1)


def test_what_an_output_is_made_of_is_compared():
    one = torch.zeros(2, 3)
    assert misfit(outline({"a": one, "b": "text"}), outline({"a": one + 1, "b": None})) == ""
    assert misfit(outline(None), outline("text")) == ""
    for made, says in [
        (one[None], "float32[1, 2, 3], expected float32[2, 3]"),
        (one.double(), "float64[2, 3], expected float32[2, 3]"),
        ((one,), "0 float32[2, 3], expected float32[2, 3]"),
        ({"a": {"b": one}}, "a.b float32[2, 3], expected float32[2, 3]"),
        (None, "nothing, expected float32[2, 3]"),
    ]:
        assert misfit(outline(made), outline(one)) == says
    assert misfit(outline((one, one)), outline([one])) == "1 float32[2, 3], expected nothing"
    with pytest.raises(RuntimeRefusedError, match=r"its outputs .*: 0 float32\[1, 2, 3\], expected 0 float"):
        refuse_difference([one[None]], [one], "compiled,")
    with pytest.raises(RuntimeRefusedError, match="nothing, expected 1 float"):
        refuse_difference([one], [one, one], "compiled,")
