import pytest
import torch

from autoprec.workload import Workload

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
transformers = pytest.importorskip("transformers")

from autoprec.prepare import prepare  # noqa: E402


class Encoder(Workload):
    """Two layers of BERT, at several lengths and with padding."""

    def build_model(self):
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
        )
        return transformers.BertModel(config).eval()

    def example_inputs(self):
        return self.batch(2, 9)

    def calibration(self):
        return [self.batch(3, 6), self.batch(1, 12)]

    def batch(self, rows, length):
        torch.manual_seed(rows)
        mask = torch.ones(rows, length, dtype=torch.int64)
        mask[0, -2:] = 0
        return {"input_ids": torch.randint(0, 50, (rows, length)), "attention_mask": mask}

    def run(self, model, inputs):
        return model(**inputs).last_hidden_state


def test_attention_is_one_operator_with_the_same_results_and_every_layer_is_still_found():
    prepared = prepare(Encoder, "latency")
    prepared.use_runtime("onnxruntime")
    prepared.use_runtime("openvino")
    runtime = prepared.graph_runtime("onnxruntime")
    assert runtime.prepare() == {}  # it compares outputs with the model's

    def operators(exported):
        return [node.op_type for editor in exported.editors for node in editor.exported.proto.graph.node]

    assert operators(runtime.exported).count("MultiHeadAttention") == 2
    assert "MultiHeadAttention" not in operators(prepared.graph_runtime("openvino").exported)


def test_no_path_of_this_machine_is_in_the_graph():
    prepared = prepare(Encoder, "latency")
    prepared.use_runtime("onnxruntime")
    for editor in prepared.graph_runtime("onnxruntime").exported.editors:
        assert b".py" not in editor.exported.proto.SerializeToString()
