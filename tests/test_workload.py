import dataclasses
import itertools
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch import nn

from autoprec.errors import WorkloadError
from autoprec.finding import load_workload
from autoprec.fingerprint import architecture_fingerprint, measured_fingerprint, weights_fingerprint
from autoprec.slices import slice_indices
from autoprec.workload import (
    FIDELITY,
    Example,
    LoadedWorkload,
    Workload,
    define_workload,
    iter_tensors,
)

GOOD = """
import torch
from torch import nn

class Mine:
    def build_model(self):
        return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    def example_inputs(self):
        return torch.randn(2, 4)
    def quality(self, model):
        return 0.5

class Holder:
    Inner = Mine

made = Mine()
number = 5
def build(): ...
"""


@pytest.fixture
def file(tmp_path):
    """Write a workload file and return its path."""

    def write(text=GOOD, name="mine.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def refused(reference, says):
    with pytest.raises(WorkloadError) as caught:
        load_workload(reference)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Small(Workload):
    """The smallest workload."""

    def build_model(self):
        return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))

    def example_inputs(self):
        return torch.ones(2, 4)


def judged(value):
    """Return a loaded workload whose quality returns `value`."""
    made = define_workload(example_inputs=torch.ones(2, 4), quality=lambda model: value)
    return load_workload(made(Small().build_model))


class TestReferences:
    @pytest.mark.parametrize("attribute", ["Mine", "made", "Holder.Inner"])
    def test_a_file(self, file, attribute):
        loaded = load_workload(f"{file()}:{attribute}")
        assert loaded.reference == f"{file()}:{attribute}"
        assert loaded.has_quality and not loaded.has_final_split
        assert loaded.quality(loaded.build_model(), "search") == 0.5

    def test_a_file_whose_neighbours_are_imported(self, file, monkeypatch):
        monkeypatch.setattr(sys, "path", [*sys.path])
        file("SIZE = 6", "the_neighbour.py")
        path = file(GOOD.replace("import torch\n", "import torch\nimport the_neighbour\n", 1))
        assert load_workload(f"{path}:Mine").build_model()

    def test_a_module_in_the_working_directory(self, file, monkeypatch):
        monkeypatch.chdir(file(name="workload_in_a_module.py").parent)
        monkeypatch.setattr(sys, "path", [*sys.path])
        assert load_workload("workload_in_a_module:Mine").build_model()

    def test_a_ready_made_name(self):
        assert load_workload("mnist-cnn").has_final_split

    def test_a_class_an_instance_and_what_is_loaded_already(self):
        loaded = load_workload(Small)
        assert loaded.reference == load_workload(Small()).reference == f"{__name__}:Small"
        assert load_workload(loaded) is loaded

    def test_a_class_that_inherits_nothing(self, file):
        class Duck:
            def build_model(self):
                return nn.Linear(2, 2)

            def example_inputs(self):
                return torch.ones(1, 2)

        loaded = load_workload(Duck)
        assert loaded.quality_name == FIDELITY and not loaded.has_quality
        assert loaded.groups == loaded.exclude == ()
        assert loaded.run(loaded.build_model(), torch.ones(1, 2)).shape == (1, 2)
        assert loaded.calibration() is None and loaded.metrics(nn.Linear(1, 1), "search") == {}

    def test_a_decorated_function(self, file):
        path = file("""
            import torch
            from torch import nn
            import autoprec

            @autoprec.define_workload(
                example_inputs=lambda: torch.ones(2, 4), quality=lambda model: 0.25,
                run=lambda model, inputs: model(inputs) * 2, exclude=("1",),
            )
            def mine():
                return nn.Sequential(nn.Linear(4, 3))
            """)
        loaded = load_workload(f"{path}:mine")
        model = loaded.build_model()
        (example,) = loaded.examples("latency")
        assert torch.equal(loaded.run(model, example.inputs), model(example.inputs) * 2)
        assert loaded.quality(model, "search") == 0.25
        assert loaded.exclude == ("1",)

    def test_a_decorator_with_a_misspelt_method_is_refused(self):
        with pytest.raises(WorkloadError, match="got 'qualty'; a workload has run, quality"):
            define_workload(example_inputs=torch.ones(1), qualty=lambda model: 1.0)

    def test_paths_that_lead_nowhere(self, file, tmp_path):
        path = file()
        refused(f"{tmp_path}/absent.py:Mine", "there is no file")
        refused(f"{tmp_path}:Mine", "importing")
        refused("absent_package.module:Mine", "No module named 'absent_package'")
        refused(f"{path}:Absent", "has no 'Absent'; it has Mine, Holder")
        refused(f"{path}:Mine.Absent", "has no 'Mine.Absent'")
        refused(str(path), "Did you mean")
        refused("absent", "Ready-made: ")
        assert "mnist-cnn" in refused("", "unknown workload ''")
        for broken in (":", f"{path}:", ":Mine"):
            refused(broken, "is not of the form")

    def test_what_is_no_workload(self, file):
        path = file()
        refused(f"{path}:number", "has no method build_model()")
        assert "define_workload" in refused(f"{path}:build", "is a plain function")
        refused(5, "'builtins:int' has no method build_model()")
        assert "test_what_is_no_workload" in refused(lambda: None, "is a plain function")

        class Half:
            def build_model(self): ...

        refused(Half, "has no method example_inputs()")

    @pytest.mark.parametrize(("text", "says"), [
        ("raise ValueError('first\\nsecond')", "raised ValueError: first second"),
        ("import sys; sys.exit(3)", "called exit(3)"),
        ("def broken(:", "raised SyntaxError: "),
        ("import package_that_is_absent", "No module named 'package_that_is_absent'"),
        ("\x00", "raised "),
    ])  # fmt: skip
    def test_a_file_that_cannot_be_imported(self, file, text, says):
        path = file(text)
        before = set(sys.modules)
        refused(f"{path}:Mine", says)
        assert not [name for name in set(sys.modules) - before if name.startswith("_autoprec")]

    def test_a_class_that_cannot_be_made(self):
        class Needs:
            def __init__(self, what): ...

        refused(Needs, "raised TypeError")


class TestTheContract:
    def test_a_model_comes_in_eval_mode_and_the_same_in_every_call(self):
        loaded = load_workload(Small)
        state = torch.get_rng_state()
        one, two = loaded.build_model(), loaded.build_model()
        assert not one.training and not one[0].training
        assert torch.equal(one[0].weight, two[0].weight)
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize("value", [None, 5, "model", nn.Linear])
    def test_what_is_no_model_is_refused(self, value):
        made = define_workload(example_inputs=torch.ones(1))(lambda: value)
        with pytest.raises(
            WorkloadError, match=r"build_model\(\) returned an? .*must return a torch.nn.Module"
        ):
            load_workload(made).build_model()

    def test_a_build_model_that_raises_is_named(self):
        def build():
            raise RuntimeError("no\nweights")

        made = define_workload(example_inputs=torch.ones(1))(build)
        with pytest.raises(WorkloadError, match=r"build_model\(\) raised RuntimeError: no weights") as caught:
            load_workload(made).build_model()
        assert isinstance(caught.value.__cause__, RuntimeError)

    @pytest.mark.parametrize(("given", "words"), [
        (torch.ones(2, 4), "float32[2, 4]"),
        ((torch.ones(2, 4), torch.ones(1, dtype=torch.int64)), "float32[2, 4], int64[1]"),
        ({"x": torch.ones(2), "mask": None}, "x float32[2], mask NoneType"),
        (Example(torch.ones(2, 4), 5.0), "float32[2, 4]"),
        ([Example(torch.ones(2, 4), 5.0)], "float32[2, 4]"),
    ])  # fmt: skip
    def test_one_batch_is_the_whole_traffic(self, given, words):
        made = define_workload(example_inputs=given)(lambda: nn.Linear(1, 1))
        (example,) = load_workload(made).examples("latency")
        assert example.weight == 1.0 and example.name == words

    def test_weights_are_shares(self):
        batches = [Example(torch.ones(1, 4), 3, "short"), Example(torch.ones(8, 4), 1.0, "long")]
        made = define_workload(example_inputs=lambda: batches)(lambda: nn.Linear(4, 1))
        found = load_workload(made).examples("latency")
        assert [(e.weight, e.name) for e in found] == [(0.75, "short"), (0.25, "long")]

    @pytest.mark.parametrize("weights", [
        (1, 0), (1, -1), (1, float("nan")), (1, float("inf")), (1, "2"), (1, None), (1, 101),
    ])  # fmt: skip
    def test_weights_that_are_no_shares_are_refused(self, weights):
        made = define_workload(example_inputs=[Example(torch.ones(1), w) for w in weights])
        with pytest.raises(WorkloadError, match="weight"):
            load_workload(made(lambda: nn.Linear(1, 1))).examples("latency")

    @pytest.mark.parametrize("given", [None, [], ()])
    def test_no_inputs_are_refused(self, given):
        made = define_workload(example_inputs=lambda: given)(lambda: nn.Linear(1, 1))
        with pytest.raises(WorkloadError, match="it must return inputs"):
            load_workload(made).examples("latency")

    def test_throughput_has_inputs_of_its_own_where_they_are_given(self):
        one = define_workload(example_inputs=torch.ones(1), throughput_inputs=torch.ones(64))
        loaded = load_workload(one(lambda: nn.Linear(1, 1)))
        assert loaded.examples("throughput")[0].inputs.shape == (64,)
        assert loaded.examples("latency")[0].inputs.shape == (1,)
        assert load_workload(Small).examples("throughput")[0].inputs.shape == (2, 4)

    @pytest.mark.parametrize("value", [0.5, 1, np.float32(0.5), np.array(0.5)])
    def test_quality_is_a_number(self, value):
        found = judged(value).quality(nn.Linear(1, 1), "search")
        assert type(found) is float and found == float(value)

    @pytest.mark.parametrize("value", [
        torch.tensor(0.5), "0.5", b"1", None, True, [0.5], float("nan"), float("-inf"), 1j,
        np.array([0.5, 0.5]), {"accuracy": 0.5},
    ])  # fmt: skip
    def test_other_qualities_are_refused(self, value):
        with pytest.raises(WorkloadError, match=r"quality\(model\) returned .*must return"):
            judged(value).quality(nn.Linear(1, 1), "search")

    def test_a_quality_that_leaves_is_a_mistake_and_not_the_end(self):
        made = define_workload(example_inputs=torch.ones(1), quality=lambda model: sys.exit(0))
        with pytest.raises(WorkloadError, match=r"quality\(model\) called exit\(0\)"):
            load_workload(made(lambda: nn.Linear(1, 1))).quality(nn.Linear(1, 1), "search")

    def test_the_share_is_handed_on_where_quality_names_it(self):
        seen = []

        @define_workload(
            example_inputs=lambda: torch.ones(1),
            quality=lambda model, share=1.0: seen.append(share) or 1.0,
        )
        def names():
            return nn.Linear(1, 1)

        loaded = load_workload(names)
        assert loaded.has_slices and not loaded.has_final_split
        loaded.quality(None, "search")
        loaded.quality(None, "search", 0.25)
        assert seen == [1.0, 0.25]

    def test_a_slice_is_fixed_and_part_of_a_larger_one(self):
        slices = [slice_indices(100, share) for share in (0.001, 0.25, 0.5, 1)]
        assert [len(chosen) for chosen in slices] == [1, 25, 50, 100]
        for small, large in itertools.pairwise(slices):
            assert set(small) < set(large) and large == sorted(large)
        assert slice_indices(100, 0.25) == slices[1] and slice_indices(0, 0.5) == []

    @pytest.mark.parametrize("share", [0, -1, 1.01, float("nan")])
    def test_a_share_that_is_none_is_refused(self, share):
        with pytest.raises(WorkloadError, match=r"share is .*; it must be a number above 0 and at most 1"):
            slice_indices(10, share)

    def test_the_split_is_handed_on_where_quality_takes_it(self):
        seen = []

        class Splits(Small):
            quality_name = "words"

            def quality(self, model, split="search"):
                seen.append(split)
                return 1.0

        loaded = load_workload(Splits)
        assert loaded.has_final_split and loaded.quality_name == "words"
        loaded.quality(nn.Linear(1, 1), "final")
        assert seen == ["final"]

    def test_the_name_of_quality_is_one_line_that_a_plan_can_hold(self):
        def name(value):
            made = define_workload(example_inputs=torch.ones(1), quality=float, quality_name=value)
            return load_workload(made(lambda: nn.Linear(1, 1))).quality_name

        assert [name(""), name(None), name("two\nlines")] == ["quality", "None", "two lines"]
        assert len(name("x" * 5000)) == 200

    def test_one_pattern_may_be_given_alone(self):
        class Grouped(Small):
            groups = r"\d"
            exclude = 5

        loaded = load_workload(Grouped)
        assert loaded.groups == (r"\d",)
        with pytest.raises(WorkloadError, match=r"exclude is 5; it must be a tuple of regular expressions"):
            loaded.exclude  # noqa: B018

    def test_metrics_are_a_dict_of_numbers(self):
        def metrics(value):
            made = define_workload(example_inputs=torch.ones(1), metrics=lambda model: value)
            return load_workload(made(lambda: nn.Linear(1, 1))).metrics(nn.Linear(1, 1), "search")

        assert metrics({"loss": np.float64(0.5)}) == {"loss": 0.5}
        for value in (0.5, {"loss": float("nan")}, {"loss": "low"}):
            with pytest.raises(WorkloadError, match=r"metrics\(model\)"):
                metrics(value)

    def test_calibration_batches_are_a_list_that_is_not_empty(self):
        def calibration(value):
            made = define_workload(example_inputs=torch.ones(1), calibration=lambda: value)
            return load_workload(made(lambda: nn.Linear(1, 1))).calibration()

        assert calibration(iter([1, 2])) == [1, 2]
        for value in ([], 5, None):
            with pytest.raises(WorkloadError, match=r"calibration\(\) returned no batch"):
                calibration(value)


def print_fingerprint(path):
    code = f"""
        from autoprec.fingerprint import measured_fingerprint
        from autoprec.finding import load_workload
        loaded = load_workload({f"{path}:Mine"!r})
        model = loaded.build_model()
        print(measured_fingerprint(loaded, model, loaded.examples("latency")))
        """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def fingerprint(workload, model=None):
    loaded = load_workload(workload)
    return measured_fingerprint(loaded, model or loaded.build_model(), loaded.examples("latency"))


class TestFingerprints:
    def test_they_are_the_same_in_every_process_also_without_a_seed(self, file):
        path = file(
            GOOD.replace("Mine:", "Mine:\n    labels = {'a', 'b', 'c'}\n    table = {1: object, 2: print}")
        )
        assert print_fingerprint(path) == print_fingerprint(path)
        changed = file(GOOD.replace("return 0.5", "return 0.6"), "changed.py")
        assert print_fingerprint(changed) != print_fingerprint(path)

    def test_two_fine_tunes_share_the_architecture_and_no_figures(self):
        one, two = Small().build_model(), Small().build_model()
        assert architecture_fingerprint(one) == architecture_fingerprint(two)
        assert weights_fingerprint(one) != weights_fingerprint(two)
        assert fingerprint(Small, one) != fingerprint(Small, two)
        assert fingerprint(Small, one) == fingerprint(Small, one)

    def test_dtype_is_no_part_of_the_architecture_but_of_the_weights(self):
        model = nn.Linear(3, 2)
        before = architecture_fingerprint(model), weights_fingerprint(model)
        model.to(torch.bfloat16)
        assert architecture_fingerprint(model) == before[0]
        assert weights_fingerprint(model) != before[1]

    def test_the_architecture_sees_shapes_types_names_and_ties(self):
        def digest(make):
            return architecture_fingerprint(make())

        def tied():
            model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
            model["b"].weight = model["a"].weight
            return model

        found = [
            digest(lambda: nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})),
            digest(lambda: nn.ModuleDict({"a": nn.Linear(3, 3), "c": nn.Linear(3, 3)})),
            digest(lambda: nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 4)})),
            digest(lambda: nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3, bias=False)})),
            digest(lambda: nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Bilinear(3, 3, 3)})),
            digest(tied),
        ]
        assert len(set(found)) == len(found)

    def test_buffers_count_as_weights(self):
        one, two = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
        two.running_mean += 1
        assert weights_fingerprint(one) != weights_fingerprint(two)

    def test_shapes_and_weights_of_the_examples_count(self):
        def made(*examples):
            return define_workload(example_inputs=list(examples))(lambda: nn.Linear(1, 1))

        one, two = torch.ones(1, 1), torch.ones(2, 1)
        found = [
            fingerprint(made(Example(one))),
            fingerprint(made(Example(two))),
            fingerprint(made(Example(one), Example(two))),
            fingerprint(made(Example(one, 2.0), Example(two))),
            fingerprint(made(Example(one * 2))),
        ]
        assert len(set(found)) == len(found)

    @pytest.mark.parametrize(("one", "two"), [
        (torch.zeros(3), torch.tensor([0.0, 1.0, 0.0])),
        (np.zeros(3), np.ones(3)),
        (np.array([["a"], None], dtype=object), np.array([["b"], None], dtype=object)),
        ({"a", "b"}, {"a", "c"}),
        ({"a": [1, 2]}, {"a": [1, 3]}),
        (1, 1.0),
        ("1", 1),
        (range(3), range(4)),
        (torch.float32, torch.float64),
        (Example(1), Example(2)),
        (lambda: 1, lambda: 2),
        (lambda a=1: a, lambda a=2: a),
        (torch.utils.data.TensorDataset(torch.zeros(3)), torch.utils.data.TensorDataset(torch.ones(3))),
        (torch.zeros(3).to_sparse(), torch.ones(3).to_sparse()),
    ])  # fmt: skip
    def test_data_that_a_workload_holds_counts(self, one, two):
        class Holds(Small):
            def __init__(self, data):
                self.data = data

        assert fingerprint(Holds(one)) == fingerprint(Holds(one))
        assert fingerprint(Holds(one)) != fingerprint(Holds(two))

    def test_data_in_an_object_of_the_users_own_counts(self):
        class Data:
            def __init__(self, labels):
                self.labels = labels
                self.itself = self

        class Holds(Small):
            def __init__(self, data):
                self.data = data

        assert fingerprint(Holds(Data([1]))) == fingerprint(Holds(Data([1])))
        assert fingerprint(Holds(Data([1]))) != fingerprint(Holds(Data([2])))

    def test_what_a_quality_closes_over_counts(self):
        def made(labels):
            def quality(model):
                return float(labels.sum())

            return define_workload(example_inputs=torch.ones(1), quality=quality)(lambda: nn.Linear(1, 1))

        model = nn.Linear(1, 1)
        assert fingerprint(made(torch.ones(3)), model) == fingerprint(made(torch.ones(3)), model)
        assert fingerprint(made(torch.ones(3)), model) != fingerprint(made(torch.zeros(3)), model)

    @pytest.mark.parametrize("change", ["the_model.py", "the_metric.py", "the_metrics_own.py"])
    def test_code_in_other_files_counts(self, file, change):
        """Of the model, whose structure says nothing of its forward(), and of what judges it."""
        text = "from the_model import Net\nimport the_metric\n" + GOOD
        text = text.replace("nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))", "Net()")
        path = file(text.replace("return 0.5", "return the_metric.judge(model)"))
        file("""
            from torch import nn
            class Net(nn.Linear):
                def __init__(self):
                    super().__init__(4, 2)
                def forward(self, x):
                    return super().forward(x)
            """, "the_model.py")  # fmt: skip
        file("from the_metrics_own import scale\ndef judge(model): return scale() * 0.0", "the_metric.py")
        file("def scale(): return 1.0", "the_metrics_own.py")
        before = print_fingerprint(path)
        assert print_fingerprint(path) == before
        with path.with_name(change).open("a") as other:
            other.write("\n# changed\n")
        assert print_fingerprint(path) != before

    def test_calibration_batches_count(self):
        loaded, model = load_workload(Small), Small().build_model()
        examples = loaded.examples("latency")
        one, two = (measured_fingerprint(loaded, model, examples, [torch.ones(n)]) for n in (1, 2))
        assert one != two

    def test_data_at_the_top_of_the_file_counts(self, file):
        text = GOOD.replace("return 0.5", "return float(labels[0])") + "\nfrom labels_of import labels\n"
        path = file(text)
        file("labels = [0.5]", "labels_of.py")
        before = print_fingerprint(path)
        file("labels = [0.7]", "labels_of.py")
        assert print_fingerprint(path) != before


def test_a_loaded_workload_is_the_only_way_in():
    assert isinstance(load_workload(Small), LoadedWorkload)


def define(build_model, **methods):
    return define_workload(example_inputs=lambda: torch.ones(1, 4), **methods)(build_model)


def test_calibration_may_be_a_generator_that_draws_and_its_mistakes_are_named():
    def drawn():
        for _ in range(2):
            yield torch.randn(3)

    first, second = (
        load_workload(define(Small().build_model, calibration=drawn)).calibration() for _ in "ab"
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True)) and len(first) == 2

    def breaks():
        yield torch.ones(3)
        raise ValueError("bo\nom")

    with pytest.raises(WorkloadError, match=r"calibration\(\) raised ValueError: bo om"):
        load_workload(define(Small().build_model, calibration=breaks)).calibration()


def test_a_lazy_model_is_refused_in_one_sentence():
    with pytest.raises(
        WorkloadError, match=r"0\.weight of the model has no shape yet \(a lazy module\); run"
    ):
        load_workload(define(lambda: nn.Sequential(nn.LazyLinear(4)))).build_model()


def test_tensors_are_found_in_dataclasses():
    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor
        extra: tuple

    one, two = torch.ones(1), torch.ones(2)
    assert [t.numel() for t in iter_tensors(Output(one, (two, "text")))] == [1, 2]
