"""What this machine can do: every operation × format, native, emulated or refused, and why."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Column, Table

from autoprec.errors import RuntimeRefusedError
from autoprec.kernels.device import capability, device_name
from autoprec.kernels.families import OPERANDS, detect, native
from autoprec.kernels.formats import FORMATS
from autoprec.kernels.registry import Level, Operation, OpShape, Support, feasible, implementations
from autoprec.plan import COMPILE
from autoprec.runtimes.available import GRAPH_RUNTIMES, graph_runtime_class
from autoprec.runtimes.compiled import compiler_refusal
from autoprec.store.store import Store
from autoprec.terminal import make_console

SAMPLES = {
    Operation.LINEAR: OpShape(Operation.LINEAR, 16, 512, 512, True),
    Operation.CONV2D: OpShape(Operation.CONV2D, 196, 64, 64, True, kernel=(3, 3), padding=(1, 1)),
    Operation.EMBEDDING: OpShape(Operation.EMBEDDING, 16, 1024, 256, False),
}
"""A common shape of each operation; `autoprec tune` asks again for the shapes it really sees."""


def diagnose(device: torch.device) -> dict[str, dict[Operation, Support]]:
    """Return format × operation → support on a device, at `SAMPLES`."""
    by_operation = {operation: feasible(operation, [shape], device) for operation, shape in SAMPLES.items()}
    return {name: {operation: found[name] for operation, found in by_operation.items()} for name in FORMATS}


def describe_family(device: torch.device) -> str:
    """Return the family of a device, whether it is verified and what it multiplies natively, on a line."""
    family = detect(device)
    if family is None:
        return "Family: none that is described; docs/devices.md says how to add one"
    types = [operand for operand in OPERANDS if native(family, operand).level is Level.NATIVE]
    verified = "verified" if family.verified else "not verified"
    return (
        f"Family: {family.title} ({verified}: {family.verified_how}); multiplies natively {', '.join(types)}"
    )


def _print_runtimes(console: Console) -> None:
    """Print which formats each other runtime has for one layer, and why not the others."""
    table = Table(Column("runtime", no_wrap=True), *(operation.value for operation in SAMPLES))
    refusal = compiler_refusal()
    table.add_row(COMPILE, *["no C++ compiler" if refusal else "as above"] * len(SAMPLES))
    reasons = [f"{COMPILE}: {refusal}"] if refusal else []
    for name in GRAPH_RUNTIMES:
        try:
            support = graph_runtime_class(name).support
        except RuntimeRefusedError as error:
            table.add_row(name, *["does not work"] * len(SAMPLES))
            reasons.append(str(error))
            continue
        found = {(op, fmt): support(op, fmt) for op in SAMPLES for fmt in FORMATS}
        native = {op: [fmt for fmt in FORMATS if found[op, fmt].level is Level.NATIVE] for op in SAMPLES}
        table.add_row(name, *(", ".join(formats) for formats in native.values()))
        refused: dict[str, list[str]] = {}
        for (op, fmt), answer in found.items():
            if answer.level is not Level.NATIVE:
                refused.setdefault(answer.reason, []).append(f"{fmt} {op.value}")
        reasons += [f"{name}: {', '.join(cells)}: {reason}" for reason, cells in refused.items()]
    console.print(table)
    for reason in reasons:
        console.print(reason, soft_wrap=True)


def print_doctor() -> None:
    """Print the table, the reasons, and where things are."""
    console = make_console()
    console.print(
        f"{device_name()} ({capability()}), {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    device = torch.device("cpu")
    console.print(describe_family(device), soft_wrap=True)
    found = diagnose(device)
    table = Table(Column("format", no_wrap=True), *(operation.value for operation in SAMPLES), "what it is")
    reasons: list[str] = []
    for name, row in found.items():
        cells = []
        for operation, support in row.items():
            if support.level is Level.NATIVE:
                kernels = [
                    item.name
                    for item in implementations(operation, name)
                    if item.support(SAMPLES[operation], device).level is Level.NATIVE
                ]
                cells.append(f"native: {', '.join(kernels)}")
            else:
                cells.append(support.level.value)
                reasons.append(f"{name} {operation.value}: {support.level.value}, {support.reason}")
        table.add_row(name, *cells, FORMATS[name].summary)
    console.print(table)
    for reason in reasons:
        console.print(reason, soft_wrap=True)
    _print_runtimes(console)
    with Store.open() as store:
        console.print(f"Store: {store.location}", soft_wrap=True)
