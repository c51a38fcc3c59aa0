import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune, weight_norm

from autoprec.comparing import relative_error
from autoprec.envs.baseline import observe_baseline
from autoprec.envs.measure import Measurer
from autoprec.envs.plans import make_plan
from autoprec.envs.units import discover
from autoprec.errors import SettingError, WorkloadError
from autoprec.finding import load_workload
from autoprec.fingerprint import architecture_fingerprint
from autoprec.kernels.registry import Operation
from autoprec.runtimes.eager import EagerRuntime
from autoprec.workload import Workload, define_workload

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


def find(model, inputs=X, workload=None, **options):
    """Discover the units of a model in eval mode; the model must come out as it went in."""
    model.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    methods = workload or {}
    loaded = load_workload(define_workload(example_inputs=lambda: inputs, **methods)(lambda: model))
    try:
        return discover(loaded, model, loaded.examples("latency"), **options)
    finally:
        assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def paths(discovery):
    return [[module.path for module in unit.modules] for unit in discovery.units]


class Attention(nn.Module):
    """Attention that reads queries from one tensor and keys and values from another or the same."""

    def __init__(self, width=8):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x, context=None):
        context = x if context is None else context
        weights = torch.softmax(self.q(x) @ self.k(context).transpose(-1, -2), dim=-1)
        return self.out(weights @ self.v(context))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Calls(nn.Module):
    """A module with parts and a forward given as a function."""

    def __init__(self, forward, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._function = forward

    def forward(self, *args, **kwargs):
        return self._function(self, *args, **kwargs)


class TestSiblings:
    def test_modules_that_read_one_tensor_are_one_unit(self):
        model = nn.Sequential(Attention(), Gated())
        found = find(model)
        assert paths(found) == [["0.q", "0.k", "0.v"], ["0.out"], ["1.gate", "1.up"], ["1.down"]]
        assert [unit.name for unit in found.units] == ["0.{q,k,v}", "0.out", "1.{gate,up}", "1.down"]
        assert found.left == {}
        first = found.units[0]
        assert (first.baseline, first.tied) == ("fp32", False)
        shape = first.modules[0].shapes[0]
        assert (shape.operation, shape.rows, shape.inputs, shape.outputs) == (Operation.LINEAR, 10, 8, 8)
        assert shape.bias and shape.dtype == "float32"

    def test_layers_of_a_decoder_that_read_one_encoder_output_stay_apart(self):
        class Decoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(Attention() for _ in range(3))

            def forward(self, x, memory):
                for layer in self.layers:
                    x = x + layer(x, memory)
                return x

        found = find(Decoder(), (X, torch.randn(2, 7, 8)))
        assert paths(found) == [
            part
            for i in range(3)
            for part in ([f"layers.{i}.q"], [f"layers.{i}.k", f"layers.{i}.v"], [f"layers.{i}.out"])
        ]

    def test_different_tensors_views_and_changed_tensors_are_no_siblings(self):
        def forward(self, x):
            a, b = self.a(x), self.b(x[:, :3])
            changed = x.clone()
            c = self.c(changed)
            d = self.d(changed.relu_())
            return a.sum() + b.sum() + c.sum() + d.sum() + self.e(x.clone()).sum()

        model = Calls(forward, **{name: nn.Linear(8, 8) for name in "abcde"})
        assert paths(find(model)) == [["a"], ["b"], ["c"], ["d"], ["e"]]

    def test_tensors_that_lived_at_one_address_are_not_one_tensor(self):
        def forward(self, x):
            for name in "abcd":
                getattr(self, name)(x * 1.0)  # freed before the next is made
            return x

        model = Calls(forward, **{name: nn.Linear(8, 8) for name in "abcd"})
        assert len(find(model).units) == 4

    def test_siblings_called_several_times_read_the_same_each_time(self):
        def forward(self, x):
            y = x + 1
            both = self.a(x) + self.b(x) + self.a(y) + self.b(y)
            return both + self.c(x) + self.c(x)

        model = Calls(forward, **{name: nn.Linear(8, 8) for name in "abc"})
        found = find(model)
        assert paths(found) == [["a", "b"], ["c"]]
        assert [m.calls for unit in found.units for m in unit.modules] == [2, 2, 2]

    def test_inputs_given_by_name_are_seen(self):
        model = Calls(lambda self, x: self.a(input=x) + self.b(x), a=nn.Linear(8, 8), b=nn.Linear(8, 8))
        assert paths(find(model)) == [["a", "b"]]

    def test_a_run_under_inference_mode_is_seen(self):
        def run(model, x):
            with torch.inference_mode():
                return model(x * 2)

        assert paths(find(Attention(), workload={"run": run})) == [["q", "k", "v"], ["out"]]


class TestSharing:
    def test_a_tied_embedding_and_head_are_one_unit(self):
        model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False))
        model[2].weight = model[0].weight
        found = find(model, torch.arange(6).view(2, 3))
        assert paths(found) == [["0", "2"], ["1"]]
        assert [unit.tied for unit in found.units] == [True, False]
        assert [m.operation for m in found.units[0].modules] == [Operation.EMBEDDING, Operation.LINEAR]
        table = found.units[0].modules[0].shapes[0]
        assert (table.rows, table.inputs, table.outputs) == (6, 20, 8)

    def test_weights_that_are_views_of_one_storage_are_tied(self):
        both = torch.randn(16, 8)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        model[0].weight, model[1].weight = nn.Parameter(both[:8]), nn.Parameter(both[8:])
        assert [unit.tied for unit in find(model).units] == [True]

    def test_a_module_called_many_times_is_one_unit_with_every_shape(self):
        """As ALBERT does, which runs one layer twelve times."""

        def forward(self, x):
            for _ in range(12):
                x = self.layer(x)
            return self.layer(x[:, 0])

        found = find(Calls(forward, layer=nn.Linear(8, 8)))
        (module,) = found.units[0].modules
        assert module.calls == 13
        assert [shape.rows for shape in module.shapes] == [10, 2]

    def test_a_module_under_two_names_is_listed_once(self):
        shared = nn.Linear(8, 8)
        model = Calls(lambda self, x: self.second(self.first(x)), first=shared, second=shared)
        found = find(model)
        assert paths(found) == [["first"]] and found.units[0].modules[0].calls == 2

    def test_units_come_in_the_order_of_execution(self):
        model = Calls(lambda self, x: self.a(self.b(x)), a=nn.Linear(8, 8), b=nn.Linear(8, 8))
        assert paths(find(model)) == [["b"], ["a"]]


class TestWhatIsLeft:
    def test_subclasses_without_a_forward_of_their_own_are_tuned(self):
        class Named(nn.Linear):
            def __init__(self):
                super().__init__(8, 8)
                self.dropout = nn.Dropout()
                self.unused = nn.Linear(8, 8)

        found = find(nn.Sequential(Named()))
        assert paths(found) == [["0"]]
        assert found.left == {"0.unused": "its forward() is not called on the example inputs"}

    def test_subclasses_that_compute_something_else_are_left_with_the_reason(self):
        class Scaled(nn.Linear):
            def forward(self, x):
                return super().forward(x) * 2

        class SamePadding(nn.Conv2d):
            def __init__(self):
                super().__init__(8, 8, 3)
                self.pad = nn.ZeroPad2d(1)

            def forward(self, x):
                return super().forward(self.pad(x))

        class OtherConv(nn.Conv2d):
            def _conv_forward(self, x, weight, bias):
                return super()._conv_forward(x * 2, weight, bias)

        model = nn.Sequential(
            SamePadding(), OtherConv(8, 8, 1), nn.Flatten(2), Scaled(16, 4), nn.Linear(4, 4)
        )
        found = find(model, torch.randn(2, 8, 4, 4))
        assert paths(found) == [["4"]]
        assert found.left == {
            "0": "SamePadding overrides Conv2d.forward",
            "1": "OtherConv overrides Conv2d.forward",
            "3": "Scaled overrides Linear.forward",
        }

    def test_torch_attention_reads_its_weights_without_calling_its_modules(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
                self.head = nn.Linear(8, 8)

            def forward(self, x):
                return self.head(self.attention(x, x, x)[0])

        found = find(Model())
        assert paths(found) == [["head"]]
        assert found.left["attention"] == "no kernel for MultiheadAttention"
        assert "is not called" in found.left["attention.out_proj"]

    @pytest.mark.parametrize(("part", "inputs", "reason"), [
        (lambda: nn.LSTM(8, 8), X, "no kernel for LSTM"),
        (lambda: nn.Conv1d(5, 5, 3), X, "no kernel for Conv1d"),
        (lambda: nn.LayerNorm(8), X, "no kernel for LayerNorm"),
        (lambda: nn.ConvTranspose2d(2, 2, 3), torch.randn(1, 2, 8, 8), "no kernel for ConvTranspose2d"),
        (lambda: nn.EmbeddingBag(9, 8), torch.arange(8).view(2, 4), "no kernel for EmbeddingBag"),
    ])  # fmt: skip
    def test_modules_without_a_kernel_are_named(self, part, inputs, reason):
        def forward(self, x):
            found = self.part(x)
            return self.head(torch.ones(1, 8)), found

        found = find(Calls(forward, part=part(), head=nn.Linear(8, 8)), inputs)
        assert found.left == {"part": reason} and paths(found) == [["head"]]

    @pytest.mark.parametrize(("change", "left"), [
        (parametrizations.weight_norm, {"0": "its weight is parametrised"}),
        (parametrizations.spectral_norm, {"0": "its weight is parametrised"}),
        (lambda m: prune.l1_unstructured(m, "weight", 0.5), {"0": "it has forward hooks"}),
        (lambda m: m.register_forward_hook(lambda *_: None), {"0": "it has forward hooks"}),
        (lambda m: m.register_forward_pre_hook(lambda *_: None), {"0": "it has forward hooks"}),
        (lambda m: m.requires_grad_(False).double(), {"0": "its weight is torch.float64"}),
    ])  # fmt: skip
    def test_modules_that_a_replacement_would_break_are_left(self, change, left):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        change(model[0])
        run = {"run": lambda model, x: model[1](model[0](x.to(model[0].weight.dtype)).float())}
        found = find(model, workload=run)
        assert paths(found) == [["1"]]
        assert {
            path: reason.split(",")[0].split(" (")[0] for path, reason in found.left.items() if path in left
        } == left

    @pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
    def test_the_old_weight_norm_is_left(self):
        found = find(nn.Sequential(weight_norm(nn.Linear(8, 8)), nn.Linear(8, 8)))
        assert paths(found) == [["1"]] and "weight_norm" in found.left["0"]

    def test_modules_that_never_run_are_left(self):
        model = Calls(lambda self, x: self.used(x), used=nn.Linear(8, 8), spare=nn.Linear(8, 8))
        found = find(model)
        assert paths(found) == [["used"]]
        assert found.left == {"spare": "its forward() is not called on the example inputs"}


class TestWhatCannotBeTuned:
    @pytest.mark.parametrize(("model", "says"), [
        (nn.Linear(8, 8), "the model: it is the whole model"),
        (nn.LSTM(8, 8), "the model: no kernel for LSTM"),
        (nn.ReLU(), "no weights"),
        (nn.Sequential(nn.LayerNorm(8)), "'0': no kernel for LayerNorm"),
    ])  # fmt: skip
    def test_a_model_without_a_unit_is_refused_with_the_reasons(self, model, says):
        with pytest.raises(WorkloadError, match="the model has no tunable unit; ") as caught:
            find(model)
        assert says in str(caught.value)

    def test_excluding_everything_leaves_no_unit(self):
        with pytest.raises(WorkloadError, match=r"no tunable unit; '0': excluded by '\.\*'"):
            find(nn.Sequential(nn.Linear(8, 8)), exclude=[".*"])

    @pytest.mark.parametrize(
        "inputs", [torch.ones(2, 9), (X, X), {"y": X}, torch.ones(2, 8).long(), "text", 5]
    )
    def test_inputs_that_the_model_rejects_are_named(self, inputs):
        with pytest.raises(WorkloadError, match="the model rejects the example inputs") as caught:
            find(nn.Sequential(nn.Linear(8, 8)), inputs)
        assert "\n" not in str(caught.value)


class TestPatterns:
    def model(self):
        return nn.ModuleList(Attention() for _ in range(2))

    RUN = {"run": lambda model, x: model[1](model[0](x))}  # noqa: RUF012

    def find(self, **options):
        return find(self.model(), workload=self.RUN, **options)

    def test_a_group_is_one_unit(self):
        found = self.find(groups=[r"\d\.out"])
        assert paths(found) == [["0.q", "0.k", "0.v"], ["0.out", "1.out"], ["1.q", "1.k", "1.v"]]
        assert found.units[1].name == "{0.out,1.out}"

    def test_what_a_group_captures_keeps_its_units_apart(self):
        found = self.find(groups=[r"(\d)\..*"])
        assert paths(found) == [["0.q", "0.k", "0.v", "0.out"], ["1.q", "1.k", "1.v", "1.out"]]
        assert [unit.name for unit in found.units] == ["0.{q,k,v,out}", "1.{q,k,v,out}"]

    def test_groups_join_what_overlaps(self):
        assert len(self.find(groups=[r"\d\.q", r"\d\.out", r"0\.(?:q|out)"]).units) == 1

    def test_a_large_group_has_a_name_that_a_plan_can_hold(self):
        layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(300))
        run = {"run": lambda model, x: [layer(x) for layer in model]}
        (unit,) = find(layers, workload=run, groups=[r"\d+"]).units
        assert unit.name == "{0,1,2,3,4,5,6,7,and 292 more}" and len(unit.modules) == 300

    def test_a_group_of_several_dtypes_is_refused(self):
        layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8).bfloat16()])
        run = {"run": lambda model, x: model[1](model[0](x).bfloat16())}
        with pytest.raises(SettingError, match=r"groups puts modules in bf16 and fp32 in one unit"):
            find(layers, workload=run, groups=[r"\d"])

    def test_patterns_match_whole_names(self):
        with pytest.raises(SettingError, match=r"groups 'out' matches no module in full"):
            self.find(groups=["out"])
        with pytest.raises(SettingError, match=r"exclude 'nothing' matches no module in full"):
            self.find(exclude=["nothing"])

    def test_what_is_excluded_is_left_with_the_pattern(self):
        found = self.find(exclude=[r"0\..*", r"1\.k"])
        assert paths(found) == [["1.q", "1.v"], ["1.out"]]
        assert found.left == {f"0.{name}": r"excluded by '0\\..*'" for name in ("q", "k", "v", "out")} | {
            "1.k": r"excluded by '1\\.k'"
        }

    def test_the_workloads_own_patterns_apply_as_well(self):
        own = self.RUN | {"exclude": (r"\d\.out",), "groups": (r"\d\.q",)}
        found = find(self.model(), workload=own, exclude=[r"\d\.k"])
        assert paths(found) == [["0.q", "0.v", "1.q", "1.v"]]

    @pytest.mark.parametrize("option", ["groups", "exclude"])
    def test_a_broken_pattern_is_refused(self, option):
        with pytest.raises(SettingError, match=rf"{option} has the broken regular expression '\(': "):
            self.find(**{option: ["("]})


def test_the_format_of_a_unit_is_that_of_its_weights():
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float32, "fp32")):
        found = find(nn.Sequential(nn.Linear(8, 8)).to(dtype), X.to(dtype))
        assert found.units[0].baseline == name
        assert found.units[0].modules[0].shapes[0].dtype == str(dtype).removeprefix("torch.")


def test_siblings_of_different_types_stay_apart():
    model = Calls(
        lambda self, x: self.a(x) + self.b(x.bfloat16()), a=nn.Linear(8, 8), b=nn.Linear(8, 8).bfloat16()
    )
    assert paths(find(model)) == [["a"], ["b"]]


@pytest.mark.parametrize(("conv", "rows"), [
    (nn.Conv2d(4, 6, 3), 2 * 6 * 6),
    (nn.Conv2d(4, 6, (1, 3), stride=(2, 1), padding=(0, 1), bias=False), 2 * 4 * 8),
    (nn.Conv2d(4, 4, 3, padding="same", groups=2), 2 * 8 * 8),
    (nn.Conv2d(4, 6, 3, dilation=2, padding="valid"), 2 * 4 * 4),
])  # fmt: skip
def test_a_convolution_is_described_as_it_ran(conv, rows):
    found = find(nn.Sequential(conv), torch.randn(2, 4, 8, 8))
    (shape,) = found.units[0].modules[0].shapes
    assert shape.rows == rows and shape.groups == conv.groups and shape.kernel == conv.kernel_size
    assert (
        shape.stride == conv.stride
        and shape.dilation == conv.dilation
        and shape.bias == (conv.bias is not None)
    )
    out = [(8 + 2 * p - d * (k - 1) - 1) // s + 1 for p, d, k, s in
           zip(shape.padding, shape.dilation, shape.kernel, shape.stride, strict=True)]  # fmt: skip
    assert 2 * out[0] * out[1] == rows


def test_the_fused_path_of_a_transformer_hides_no_layer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    found = find(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False))
    assert paths(found) == [["layers.0.linear1"], ["layers.0.linear2"]]


def padded_encoder():
    """An encoder whose fused path packs what is not padding, and what it is given."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2).eval()
    mask = torch.tensor([[False] * 7, [False] * 5 + [True] * 2])
    return model, {"src": torch.randn(2, 7, 64), "src_key_padding_mask": mask}


def test_an_encoder_that_packs_its_inputs_is_watched_measured_and_half_converted():
    model, inputs = padded_encoder()

    class Packs(Workload):
        def build_model(self):
            return model

        def example_inputs(self):
            return inputs

        def quality(self, model):
            return -float(model(**inputs)[0].square().mean())

    before = torch.backends.mha.get_fastpath_enabled()
    loaded = load_workload(Packs)
    found = discover(loaded, model, loaded.examples("latency"))
    assert paths(found) == [[f"layers.{i}.linear{j}"] for i in (0, 1) for j in (1, 2)]
    measurer = Measurer(loaded, model, loaded.examples("latency"), EagerRuntime())
    observe_baseline(measurer, found.modules, [inputs])
    names = [["aten"]] * 4
    for formats in (["fp32", "fp32", "bf16", "bf16"], ["bf16", "fp32", "fp32", "fp32"]):
        plan = make_plan(found, architecture_fingerprint(model), formats, names, {})
        with measurer.executable(plan) as candidate, torch.no_grad():
            mine, theirs = candidate.model(**inputs), model(**inputs)
            assert 0 < relative_error(mine[0], theirs[0]) < 0.01  # no padding there
    assert model.use_nested_tensor and torch.backends.mha.get_fastpath_enabled() == before
