"""Models with a key-value cache, and models called in several ways, in ONNX Runtime and OpenVINO."""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
transformers = pytest.importorskip("transformers")

from autoprec.envs.plans import make_plan  # noqa: E402
from autoprec.envs.timing import TimingSettings  # noqa: E402
from autoprec.errors import RuntimeRefusedError  # noqa: E402
from autoprec.prepare import prepare  # noqa: E402
from autoprec.runtimes.available import GRAPH_RUNTIMES  # noqa: E402
from autoprec.runtimes.structure import build, difference, flatten, names, places  # noqa: E402

IDS = torch.arange(64).mul(37).remainder(96).view(1, 64)


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


class Decoder:
    """Decodes with caches of two lengths; judged on whole windows, of two lengths too, without a cache."""

    def build_model(self):
        return llama()

    def step(self, length):
        with torch.no_grad():
            cache = self.build_model()(input_ids=IDS[:, :length], use_cache=True).past_key_values
        return {"ids": IDS[:, length : length + 1], "cache": cache}

    def example_inputs(self):
        return self.step(8)

    def calibration(self):
        return [self.step(12)]

    def run(self, model, inputs):
        cache = inputs["cache"]
        length = cache.get_seq_length()
        out = model(input_ids=inputs["ids"], past_key_values=cache, use_cache=True)
        assert out.past_key_values is cache
        assert cache.get_seq_length() == length + 1
        cache.crop(length)
        return out.logits

    def quality(self, model):
        both = [model(input_ids=IDS[:, :n], use_cache=False).logits for n in (16, 24)]
        return -float(sum(logits.square().mean() for logits in both))


def plan_for(prepared, runtime, formats):
    units = prepared.discovery.units
    implementations = [[runtime] * len(unit.modules) for unit in units]
    chosen = [next((name for part, name in formats.items() if part in unit.name), "fp32") for unit in units]
    return make_plan(prepared.discovery, prepared.context.architecture, chosen, implementations, {}, runtime)


@pytest.fixture(scope="module")
def decoder():
    return prepare(Decoder, "latency")


@pytest.fixture(scope="module", params=sorted(GRAPH_RUNTIMES))
def runtime(request, decoder):
    pytest.importorskip(request.param)
    decoder.use_runtime(request.param)
    found = decoder.graph_runtime(request.param)
    assert found.prepare() == {}  # the head too, whose weight is the embedding's, turned around in the graph
    return found


def test_each_way_of_calling_has_a_graph(decoder, runtime):
    decode, judge = runtime.exported.calls.forms
    assert (decode.timed, judge.timed) == (True, False)
    assert decode.inputs[:3] == (
        "input_ids", "past_key_values.layers.0.keys", "past_key_values.layers.0.values"
    )  # fmt: skip
    assert decode.outputs[:2] == ("logits", "new.past_key_values.layers.0.keys")
    assert set(decode.varying) == {(), (2,)}
    assert (judge.inputs, judge.outputs, judge.varying) == (("input_ids",), ("logits",), ((1,),))


def test_a_decode_loop_gives_what_the_model_gives(decoder, runtime):
    with decoder.measurer.executable(plan_for(decoder, runtime.name, {})) as executable, torch.no_grad():
        mine, theirs = Decoder().step(8)["cache"], Decoder().step(8)["cache"]
        layer, kept = mine.layers[0], []
        for position in range(8, 20):
            ids = IDS[:, position : position + 1]
            found = executable.model(input_ids=ids, past_key_values=mine, use_cache=True)
            expected = decoder.measurer.model(input_ids=ids, past_key_values=theirs, use_cache=True)
            assert found.past_key_values is mine and mine.layers[0] is layer
            assert mine.get_seq_length() == position + 1
            torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(layer.keys, theirs.layers[0].keys, rtol=1e-4, atol=1e-5)
            kept.append((found.logits, found.logits.clone()))
            if position == 15:
                mine.crop(6)
                theirs.crop(6)
                break
        ids = IDS[:, 6:7]
        found = executable.model(ids, past_key_values=mine, use_cache=True).logits
        expected = decoder.measurer.model(ids, past_key_values=theirs, use_cache=True).logits
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert all(torch.equal(now, then) for now, then in kept)  # no buffer of the runtime's is used again


def test_a_plan_runs_in_every_form_and_is_measured(decoder, runtime):
    plan = plan_for(decoder, runtime.name, {"mlp": "int4_weight_only"})
    found = decoder.measurer.measure(plan, "search", TimingSettings(target=0.05, max_seconds=0.3))
    assert found.timing.ratio > 0 and 0 < abs(found.quality_drop) < 0.1
    whole = sum(p.numel() * 4 for p in decoder.measurer.model.parameters())
    saved = 2 * 3 * 64 * 128 * 4
    assert whole - saved < found.held_bytes < whole - 0.7 * saved


def test_a_call_that_was_never_watched_is_refused_by_what_it_differs_in(decoder, runtime):
    built = runtime.build(decoder.measurer.model, plan_for(decoder, runtime.name, {}))
    with pytest.raises(RuntimeRefusedError) as caught:
        built.model(input_ids=IDS[:, :8], use_cache=True)
    assert "called with input_ids int64 of 2 dimensions, use_cache=True" in str(caught.value)
    assert "use_cache is True and not False as in form 2" in str(caught.value)
    two = {"ids": IDS[:, 8:9].repeat(2, 1), "cache": Decoder().step(8)["cache"]}
    two["cache"].batch_repeat_interleave(2)
    with pytest.raises(RuntimeRefusedError, match=r"input_ids has 2 in dimension 0; it had 1 in every call"):
        Decoder().run(built.model, two)
    built.close()


PLAIN = """
import sys
import numpy as np
import onnxruntime
for name in ("model", "model-2"):
    session = onnxruntime.InferenceSession(f"{name}.onnx")
    inputs = dict(np.load(f"{name}.npz"))
    names = [each.name for each in session.get_outputs()]
    expected = inputs.pop("expected")
    found = session.run(["logits"], inputs)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
assert not any(name.startswith("autoprec") for name in sys.modules)
"""


def test_the_artefacts_are_complete(decoder, runtime, tmp_path):
    plan = plan_for(decoder, runtime.name, {"mlp": "int4_weight_only"})
    with decoder.measurer.executable(plan) as executable, torch.no_grad():
        files = executable.artefacts()
        assert [file.name for file in files] == ["model.onnx", "model-2.onnx", "model.onnx.data"]
        for file in files:
            (tmp_path / file.name).write_bytes(file.read_bytes())
        step = Decoder().step(12)
        tensors = [tensor for layer in step["cache"].layers for tensor in (layer.keys, layer.values)]
        inputs = runtime.exported.calls.forms[0].inputs
        arrays = {n: t.numpy() for n, t in zip(inputs, [step["ids"], *tensors], strict=True)}
        decoded = Decoder().run(executable.model, step)
        np.savez(tmp_path / "model.npz", expected=decoded.numpy(), **arrays)
        judged = executable.model(input_ids=IDS, use_cache=False).logits
        np.savez(tmp_path / "model-2.npz", expected=judged.numpy(), input_ids=IDS.numpy())
    if runtime.name == "onnxruntime":
        subprocess.run([sys.executable, "-c", PLAIN], cwd=tmp_path, check=True)
    else:
        import openvino

        with np.load(tmp_path / "model-2.npz") as arrays:
            config = {"INFERENCE_PRECISION_HINT": "f32"}
            compiled = openvino.Core().compile_model(str(tmp_path / "model-2.onnx"), "CPU", config)
            found = compiled({"input_ids": arrays["input_ids"]})[0]
            np.testing.assert_allclose(found, arrays["expected"], rtol=1e-3, atol=1e-4)


class State:
    """Registered with pytree, and changed in place."""

    def __init__(self, total):
        self.total = total


pytree.register_pytree_node(State, lambda state: ([state.total], None), lambda parts, _: State(*parts))


class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.deeper = nn.Linear(4, 4)

    def forward(self, pair, options, state=None, deep=False):
        first, (second,) = pair
        found = self.layer(first * options["scale"] + second)
        if state is not None:
            state.total = state.total + found.sum()
        if deep:
            found = self.deeper(found)
        return {"found": found, "mean": found.mean(), "options": options, "first": first, "count": 3}


class Contained:
    def build_model(self):
        torch.manual_seed(0)
        return Containers()

    def example_inputs(self):
        return torch.ones(2, 4)

    def run(self, model, inputs):
        return self.call(model, inputs, deep=True)["found"]

    def call(self, model, inputs, **others):
        options = {"scale": torch.tensor(2.0)}
        state = State(torch.tensor(1.0))
        out = model([inputs, (inputs + 1,)], options, state, **others)
        assert out["options"] is options and out["count"] == 3
        return out | {"state": state.total}

    def quality(self, model):
        out = self.call(model, torch.ones(3, 4))
        return -float(out["mean"] + out["state"])


def test_containers_of_every_kind_go_through():
    pytest.importorskip("onnxruntime")
    prepared = prepare(Contained, "latency")
    prepared.use_runtime("onnxruntime")
    runtime = prepared.graph_runtime("onnxruntime")
    assert runtime.prepare() == {}
    assert [form.reached for form in runtime.exported.calls.forms] == [{"layer", "deeper"}, {"layer"}]
    example = torch.ones(2, 4)
    with prepared.measurer.executable(plan_for(prepared, "onnxruntime", {})) as executable:
        found = Contained().call(executable.model, example, deep=True)
        expected = Contained().call(prepared.measurer.model, example, deep=True)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        files = [file.name for file in executable.artefacts()]
    assert files == ["model.onnx", "model-2.onnx"]


class Free(nn.Module):
    """Calls are given by the workload; whatever else is passed does nothing."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, other=None):
        return self.layer(x)


class Writes(Free):
    def forward(self, x, other=None):
        return self.layer(x.add_(1))


class Lengths(Free):
    def forward(self, x, other=None):
        return self.layer(x), len(x)


def refusal(run, model=Free, inputs=(2, 2)):
    class Made:
        def build_model(self):
            return model()

        def example_inputs(self):
            return torch.ones(inputs[0], 4)

        def calibration(self):
            return [torch.ones(size, 4) for size in inputs[1:]]

        def run(self, model, inputs):
            found = run(model, inputs.clone())
            return found if isinstance(found, torch.Tensor) else found[0]

    pytest.importorskip("onnxruntime")
    with pytest.raises(RuntimeRefusedError) as caught:
        prepare(Made, "latency").graphs.get("onnxruntime").prepare()
    return str(caught.value)


def test_what_no_graph_takes_is_refused_by_name():
    odd = refusal(lambda model, x: model(x, other={"a": [np.ones(1)]}))
    assert "called with other.a.0, a ndarray; an exported graph takes and gives tensors" in odd
    loop = []
    loop.append(loop)
    assert "other.0 holds itself" in refusal(lambda model, x: model(x, loop))
    count = iter(range(1000))
    many = refusal(lambda model, x: model(x, other=next(count)), inputs=(2,) * 12)
    assert "called in more than 8 ways" in many and "other is " in many
    assert "writes into the tensor x" in refusal(lambda model, x: model(x), Writes)
    varies = refusal(lambda model, x: model(x), Lengths, (2, 3))
    assert "varies by more than the shapes of tensors: 1 is 3 and not 2" in varies


def test_values_are_put_together_as_they_were():
    cache = Decoder().step(4)["cache"]
    value = {"cache": cache, "pair": (torch.ones(2), [None, 3]), "state": State(torch.zeros(1))}
    structure, tensors = flatten(value)
    again = build(structure, tensors)
    assert flatten(again)[0] == structure and again["cache"] is not cache
    assert again["cache"].get_seq_length() == 4
    assert names(structure)[0] == "cache.layers.0.keys"
    assert hash(structure) == hash(flatten(copy.copy(value))[0])
    other, _ = flatten(value | {"pair": (torch.ones(2), [None, 4])})
    assert difference(other, structure) == "pair.1.1 is 4 and not 3"
    returned, none = flatten((cache, cache.layers[1]), places(value))
    assert not none
    built = build(returned, [], given=value)
    assert built[0] is cache and built[1] is cache.layers[1]
