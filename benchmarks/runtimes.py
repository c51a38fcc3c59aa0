"""What a user would pick today beside what AutoPrec finds, measured in one process against PyTorch in fp32.

    python -m benchmarks.runtimes minilm 0.005 5m [latency|throughput]

Rows: each runtime's fp32 as exported; ONNX Runtime's int8 and 4-bit weights of everything; NNCF's
int8 of everything and its int8 and int4 weights (where nncf is installed); the best plan of all runtimes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import onnx

from autoprec.api import tune
from autoprec.envs.measure import FRESH_TIMING
from autoprec.envs.space import FORMAT_NAMES, Trial
from autoprec.envs.timing import PairedTiming
from autoprec.errors import RuntimeRefusedError
from autoprec.prepare import Prepared, prepare
from autoprec.runtimes.available import GRAPH_RUNTIMES
from autoprec.runtimes.graph_module import GraphModule
from benchmarks.common import save, table

Make = Callable[[Prepared, Path, Path], None]


def main(
    workload: str = "minilm",
    max_quality_drop: str = "0.005",
    budget: str = "5m",
    objective: Literal["latency", "throughput"] = "latency",
) -> None:
    """Tune, measure every row, and print."""
    with tempfile.TemporaryDirectory() as folder:
        result = tune(
            workload,
            objective=objective,
            max_quality_drop=max_quality_drop,
            budget=budget,
            runtime="all",
            store=str(Path(folder) / "store.db"),
        )
        plan = result.best or result.lossless
        prepared = prepare(workload, objective)
        for name in {*GRAPH_RUNTIMES, plan.runtime}:
            prepared.use_runtime(name)
        with prepared.measurer.executable(plan) as ours:
            rows = [_row(prepared, title, made, ours) for title, made in _others(prepared)]
            rows.append(_row(prepared, f"AutoPrec, {budget}: {plan.runtime}", ours, None))
    table(f"{workload}, {objective}", rows)
    for found in result.runtimes:
        kept = found.best or found.lossless
        if kept is not None and kept.evidence is not None:
            speed, over = kept.evidence.speedup, kept.evidence.speedup_over_lossless
            sys.stdout.write(f"{found.name}: {speed.value:.3f}, over its lossless {over and over.value}\n")
    formats = [_formats(trial) for trial in result.trials]
    best = list(plan.formats.values())
    place = formats.index(best) + 1 if best in formats else 0
    sys.stdout.write(f"{result.tried} plans measured, {sum(_seconds(result)):.0f} s in all; ")
    sys.stdout.write(f"the best was run {place} of the {len(formats)} in its runtime\n")
    save(f"runtimes-{workload}-{objective}", rows)


def _formats(trial: Trial) -> list[str]:
    return [FORMAT_NAMES[k] for k in trial.assignment]


def _seconds(result: Any) -> tuple[float, ...]:
    spent = result.spending
    return spent.setup, spent.profile, spent.measuring, spent.thinking, spent.fresh


def _row(prepared: Prepared, title: str, executable: Any, ours: Any) -> dict[str, Any]:
    measurer = prepared.measurer
    split = measurer.splits[-1]
    drop = measurer.baseline_quality(split) - prepared.loaded.quality(executable.model, split)
    found = measurer.time(None, executable, FRESH_TIMING)
    gain = None if ours is None else measurer.time(executable, ours, FRESH_TIMING)
    return {
        "what": title,
        "x eager fp32": _interval(found),
        "ms": f"{1e3 * found.b_seconds:.2f}",
        "drop": f"{drop:.5f}",
        "MB": f"{executable.held_bytes() / 1e6:.1f}",
        "AutoPrec over it": "" if gain is None else _interval(gain),
    }


def _interval(found: PairedTiming) -> str:
    return f"{found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _others(prepared: Prepared) -> Iterator[tuple[str, Made]]:
    for title, runtime, make in ROWS:
        try:
            with _made(prepared, runtime, make) as made:
                yield title, made
        except Exception as error:  # another tool may fail on a model in any way
            sys.stderr.write(f"left out: {title} ({error})\n")


@dataclass(frozen=True)
class Made:
    """What another tool made.

    Attributes:
        model: Runs it.
        size: Bytes of the files of the form that is timed.
    """

    model: GraphModule
    size: int

    def held_bytes(self) -> int:
        """Return the bytes of its files."""
        return self.size


@contextmanager
def _made(prepared: Prepared, runtime: str, make: Make) -> Iterator[Made]:
    """Let another tool change the exported graph of each form, and load what it made."""
    graph = prepared.graph_runtime(runtime)
    exported = prepared.graph_runtime("openvino").exported  # as it was exported: nothing of ours in it
    runs, sizes = [], []
    with tempfile.TemporaryDirectory() as place:
        for index, editor in enumerate(exported.editors):
            folder = Path(place) / str(index)
            folder.mkdir()
            target = folder / "made.onnx"
            source = exported.weights.write({"fp32.onnx": editor.exported.proto}, folder)[0]
            make(prepared, source, target)
            if not target.exists():
                target = target.with_suffix(".xml")
            runs.append(graph.start(target)[0])
            sizes.append(sum(file.stat().st_size for file in folder.glob("made.*")))
        yield Made(GraphModule(exported.calls, runs.__getitem__), sizes[0])


def _as_exported(prepared: Prepared, source: Path, target: Path) -> None:
    onnx.save_model(onnx.load(str(source)), str(target))


def _ort_dynamic(prepared: Prepared, source: Path, target: Path, *, per_channel: bool = True) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(str(source), str(target), per_channel=per_channel, weight_type=QuantType.QInt8)


def _ort_static(activation: str) -> Make:
    def make(prepared: Prepared, source: Path, target: Path) -> None:
        from onnxruntime.quantization import QuantType, quantize_static
        from onnxruntime.quantization.calibrate import CalibrationDataReader

        class Reader(CalibrationDataReader):  # type: ignore[misc]  # has no types
            def __init__(self) -> None:
                self._batches = iter(_batches(prepared))

            def get_next(self) -> dict[str, Any] | None:
                return next(self._batches, None)

        quantize_static(
            str(source), str(target), Reader(), per_channel=True, weight_type=QuantType.QInt8,
            activation_type=getattr(QuantType, activation),
        )  # fmt: skip

    return make


def _batches(prepared: Prepared) -> list[dict[str, Any]]:
    """Return what calibrates tools that take the inputs of one graph."""
    batches = [prepared.measurer.examples[0].inputs, *prepared.calibration]
    forms = prepared.graph_runtime("openvino").exported.calls.forms
    if len(forms) > 1 or not all(isinstance(batch, dict) for batch in batches):
        raise RuntimeRefusedError("it takes batches of one graph's inputs")
    return [{name: tensor.numpy() for name, tensor in batch.items()} for batch in batches]


def _ort_int4(prepared: Prepared, source: Path, target: Path) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(str(source)), bits=4, block_size=64, accuracy_level=4)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target))


def _nncf(prepared: Prepared, source: Path, target: Path) -> None:
    import nncf
    import openvino

    data = nncf.Dataset(_batches(prepared))
    made = nncf.quantize(openvino.Core().read_model(str(source)), data, model_type=nncf.ModelType.TRANSFORMER)
    openvino.save_model(made, str(target.with_suffix(".xml")), compress_to_fp16=False)


def _nncf_weights(mode: str) -> Make:
    def make(prepared: Prepared, source: Path, target: Path) -> None:
        import nncf
        import openvino

        kind = getattr(nncf.CompressWeightsMode, mode)
        made = nncf.compress_weights(openvino.Core().read_model(str(source)), mode=kind)
        openvino.save_model(made, str(target.with_suffix(".xml")), compress_to_fp16=False)

    return make


ROWS: tuple[tuple[str, str, Make], ...] = (
    ("onnxruntime fp32", "onnxruntime", _as_exported),
    ("openvino fp32", "openvino", _as_exported),
    ("onnxruntime, quantize_dynamic of everything", "onnxruntime", _ort_dynamic),
    ("onnxruntime, the same with a scale a tensor", "onnxruntime", partial(_ort_dynamic, per_channel=False)),
    ("onnxruntime, quantize_static, u8 inputs", "onnxruntime", _ort_static("QUInt8")),
    ("onnxruntime, quantize_static, s8 inputs", "onnxruntime", _ort_static("QInt8")),
    ("onnxruntime, 4-bit weights everywhere", "onnxruntime", _ort_int4),
    ("openvino, nncf.quantize of everything", "openvino", _nncf),
    ("openvino, nncf int8 weights", "openvino", _nncf_weights("INT8_ASYM")),
    ("openvino, nncf int4 weights", "openvino", _nncf_weights("INT4_ASYM")),
)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
