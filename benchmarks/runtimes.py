"""What a user would pick today beside what AutoPrec finds, measured in one process against PyTorch in fp32.

    python -m benchmarks.runtimes minilm 0.005 5m [latency|throughput]

Rows: each runtime's own fp32; ONNX Runtime's dynamic int8 of everything; NNCF's int8 of everything and its
int8 weights (where nncf is installed); the best plan that `--runtime all` finds.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autoprec.api import tune
from autoprec.envs.measure import FRESH_TIMING
from autoprec.envs.plans import make_plan
from autoprec.plan import EAGER, Plan
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
        rows = []
        for name in GRAPH_RUNTIMES:
            prepared.use_runtime(name)
        for name in GRAPH_RUNTIMES:
            with prepared.measurer.executable(_fp32(prepared, name)) as executable:
                rows.append(_row(prepared, f"{name} fp32", executable))
        for title, runtime, make in ROWS:
            try:
                with _made(prepared, runtime, make) as executable:
                    rows.append(_row(prepared, title, executable))
            except ImportError as error:
                sys.stderr.write(f"left out: {title} ({error})\n")
        with prepared.measurer.executable(plan) as executable:
            rows.append(_row(prepared, f"AutoPrec, {budget}: {plan.runtime}", executable))
            own = None if plan.runtime == EAGER else _fp32(prepared, plan.runtime)
            with nullcontext() if own is None else prepared.measurer.executable(own) as reference:
                over = prepared.measurer.time(reference, executable, FRESH_TIMING)
        sys.stdout.write(f"over its runtime's own fp32: {over.ratio:.3f} [{over.low:.3f}, {over.high:.3f}]\n")
        sys.stdout.write(f"{result.tried} plans measured, {sum(_seconds(result)):.0f} s in all\n")
    table(f"{workload}, {objective}", rows)
    save(f"runtimes-{workload}-{objective}", rows)


def _seconds(result: Any) -> tuple[float, ...]:
    spent = result.spending
    return spent.setup, spent.profile, spent.measuring, spent.thinking, spent.fresh


def _row(prepared: Prepared, title: str, executable: Any) -> dict[str, Any]:
    measurer = prepared.measurer
    split = measurer.splits[-1]
    drop = measurer.baseline_quality(split) - prepared.loaded.quality(executable.model, split)
    found = measurer.time(None, executable, FRESH_TIMING)
    return {
        "what": title,
        "x eager fp32": f"{found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}]",
        "ms": f"{1e3 * found.b_seconds:.2f}",
        "drop": f"{drop:.5f}",
        "MB": f"{executable.held_bytes() / 1e6:.1f}",
    }


def _fp32(prepared: Prepared, runtime: str) -> Plan:
    units = prepared.discovery.units
    names = [[runtime] * len(unit.modules) for unit in units]
    return make_plan(
        prepared.discovery, prepared.context.architecture, ["fp32"] * len(units), names, {}, runtime
    )


@dataclass(frozen=True)
class Made:
    """What another tool made.

    Attributes:
        model: Runs it.
        size: Bytes of its files.
    """

    model: GraphModule
    size: int

    def held_bytes(self) -> int:
        """Return the bytes of its files."""
        return self.size


@contextmanager
def _made(prepared: Prepared, runtime: str, make: Make) -> Iterator[Made]:
    """Let another tool change the exported graph, and load what it made."""
    graph = prepared.graph_runtime(runtime)
    exported = graph.exported
    (editor,) = exported.editors  # those tools take one graph: models that are called in one way
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "made.onnx"
        (source,) = exported.weights.write({"fp32.onnx": editor.exported.proto}, Path(folder))
        make(prepared, source, target)
        if not target.exists():
            target = target.with_suffix(".xml")
        run, _ = graph.start(target)
        size = sum(file.stat().st_size for file in target.parent.glob("made.*"))
        yield Made(GraphModule(exported.calls, lambda index: run), size)


def _ort_dynamic(prepared: Prepared, source: Path, target: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(str(source), str(target), per_channel=True, weight_type=QuantType.QInt8)


def _nncf(prepared: Prepared, source: Path, target: Path) -> None:
    import nncf
    import openvino

    batches = [prepared.measurer.examples[0].inputs, *prepared.calibration]
    data = nncf.Dataset([{name: tensor.numpy() for name, tensor in batch.items()} for batch in batches])
    made = nncf.quantize(openvino.Core().read_model(str(source)), data, model_type=nncf.ModelType.TRANSFORMER)
    openvino.save_model(made, str(target.with_suffix(".xml")), compress_to_fp16=False)


def _nncf_weights(prepared: Prepared, source: Path, target: Path) -> None:
    import nncf
    import openvino

    made = nncf.compress_weights(openvino.Core().read_model(str(source)))
    openvino.save_model(made, str(target.with_suffix(".xml")), compress_to_fp16=False)


ROWS: tuple[tuple[str, str, Make], ...] = (
    ("onnxruntime, quantize_dynamic of everything", "onnxruntime", _ort_dynamic),
    ("openvino, nncf.quantize of everything", "openvino", _nncf),
    ("openvino, nncf int8 weights", "openvino", _nncf_weights),
)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
