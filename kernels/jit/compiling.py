"""Compiles every Triton kernel ahead of time, for processors that need not be here, and reads what came out.

`python -m autoprec.kernels.jit.compiling` prints what each target makes of each case; `--write FILE` keeps it
as the JSON that `autoprec.kernels.families` lets override what a family's file claims.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from autoprec.kernels.jit.launch import Case
from autoprec.kernels.jit.tiles import MOST_STAGES_AMD

OPERATIONS = (
    "quantize",
    "scaled_mm",
    "weight_only_mm",
    "fused_norm_quantize",
    "gradient_compress",
    "low_bit_adam",
    "quantize_int4",
    "sparse24",
)
"""Operations that have Triton kernels, each in a file of its name."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A processor to compile for.

    Attributes:
        name: As `triton` names backend and architecture, `cuda:90` or `hip:gfx942`.
        warp: Threads of a warp.
        shared: Bytes of shared memory that a program may have. NVIDIA: CUDA C++ Programming Guide, table
            "Technical specifications per compute capability"; AMD: CDNA3 ISA guide, 64 KiB of LDS.
        matrix: What matrix instructions look like in its assembly.
        wide: What loads of 16 bytes look like; of 8 for AMD, whose warps have twice the threads.
    """

    name: str
    warp: int
    shared: int
    matrix: str
    wide: str


_WIDE = r"ld\.global[.\w:]*\.(v4\.b32|v2\.b64|v8\.b32|v4\.b64)|cp\.async[.\w]*\s+\[[^\n]*, 0x10"
TARGETS = (
    Target("cuda:80", 32, 163 * 1024, r"mma\.sync", _WIDE),
    Target("cuda:90", 32, 227 * 1024, r"wgmma\.mma_async|mma\.sync", _WIDE),
    Target("cuda:100", 32, 227 * 1024, r"tcgen05\.mma|mma\.sync", _WIDE),
    Target("hip:gfx942", 64, 64 * 1024, r"v_mfma", r"(global|buffer)_load_dwordx[24]"),
)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What a target made of a case.

    Attributes:
        case: The case's name.
        target: The target's name.
        refused: Why the compiler refused it; empty where it did not.
        shared: Bytes of shared memory a program.
        spilled: Bytes of registers spilled to memory, loads and stores.
        matrix: Matrix instructions found, each once.
        wide_loads: Loads in the assembly that are wide.
    """

    case: str
    target: str
    refused: str = ""
    shared: int = 0
    spilled: int = 0
    matrix: tuple[str, ...] = ()
    wide_loads: int = 0


def cases(operations: Iterable[str] = OPERATIONS) -> Iterator[Case]:
    """Return the cases of some operations."""
    for name in operations:
        yield from importlib.import_module(f"autoprec.kernels.jit.{name}").CASES


def pairs(operations: Iterable[str] = OPERATIONS) -> Iterator[tuple[Case, Target]]:
    """Return each case with the targets that run it."""
    for case in cases(operations):
        yield from ((case, target) for target in TARGETS if target.name.startswith(case.backend))


def compile_case(case: Case, target: Target, *, ones: bool = False) -> Compiled:
    """Compile one case for one target; a refusal is a result, with the compiler's first words.

    Args:
        case: The case.
        target: The target.
        ones: Compile it as for integer arguments that are 1, which Triton makes constants of.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    backend, _, architecture = target.name.partition(":")
    arch: int | str = int(architecture) if backend == "cuda" else architecture
    names = case.kernel.arg_names
    constants = dict(case.constants) | dict.fromkeys(case.unit, 1)
    if ones:
        special = {names[place] for place in _special(case.kernel)}
        constants |= {name: 1 for name, kind in case.signature.items() if kind == "i32" and name in special}
    constants = {name: value for name, value in constants.items() if name in names}
    signature = {name: "constexpr" if name in constants else case.signature[name] for name in names}
    divisible = {
        (names.index(name),): [["tt.divisibility", 16]]
        for name, kind in signature.items()
        if kind != "constexpr" and name not in case.odd and (kind.startswith("*") or kind.startswith("i"))
    }
    source = ASTSource(case.kernel, signature, constants, divisible)
    stages = case.stages if backend == "cuda" else min(case.stages, MOST_STAGES_AMD)
    options = {"num_warps": case.warps, "num_stages": stages}
    try:
        made = triton.compile(source, target=GPUTarget(backend, arch, target.warp), options=options)
    except Exception as error:
        return Compiled(case.name, target.name, refused=_reason(error))
    text = made.asm["ptx" if backend == "cuda" else "amdgcn"]
    return Compiled(
        case.name,
        target.name,
        "",
        made.metadata.shared,
        _spilled_nvidia(text, target) if backend == "cuda" else _spilled_amd(text),
        tuple(sorted({match.group(0) for match in re.finditer(target.matrix, text)})),
        len(re.findall(target.wide, text)),
    )


def _special(kernel: Any) -> list[int]:
    """Return the places of the arguments that Triton specialises."""
    return [parameter.num for parameter in kernel.params if not parameter.do_not_specialize]


def _reason(error: Exception) -> str:
    """Return the last line that says something, without the source that Triton quotes."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[-1] if lines else 'no message'}"[:300]


def _spilled_nvidia(text: str, target: Target) -> int:
    """Assemble again and read the spills, which Triton itself learns only on a GPU."""
    import triton

    tool = triton.knobs.nvidia.ptxas_blackwell if target.name == "cuda:100" else triton.knobs.nvidia.ptxas
    architecture = re.search(r"\.target (\w+)", text)
    assert architecture is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(text)
        command = [tool.path, "-v", f"--gpu-name={architecture.group(1)}", str(source), "-o", f"{folder}/out"]
        run = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    return sum(int(found) for found in re.findall(r"(\d+) bytes spill", run.stderr))


def _spilled_amd(text: str) -> int:
    """Read what the assembly's own notes say: registers spilled, of 4 bytes in each of 64 lanes."""
    counts = re.findall(r"\.vgpr_spill_count:\s*(\d+)", text)
    return sum(int(count) for count in counts) * 4 * 64


def as_refusals(results: Iterable[Compiled]) -> dict[str, Any]:
    """Return results by target, as `compiled.json` of the device families has them.

    Cases that need no type of the processor's own tell nothing about it, and are left out.
    """
    import triton

    found: dict[str, Any] = {}
    names = {case.name: f"{case.name} of {' and '.join(case.operands)}" for case in cases() if case.operands}
    for item in results:
        if item.case not in names:
            continue
        entry = found.setdefault(item.target, {"triton": triton.__version__, "refused": {}, "compiled": []})
        if item.refused:
            entry["refused"][names[item.case]] = item.refused
        else:
            entry["compiled"].append(names[item.case])
    return found


def main() -> None:
    """Compile what was asked for and print a line each; `--json` prints everything as JSON."""
    parser = argparse.ArgumentParser(description="Compile the Triton kernels ahead of time.")
    parser.add_argument("operations", nargs="*", help=f"of {', '.join(OPERATIONS)}; default: all")
    targets = [target.name for target in TARGETS]
    parser.add_argument("--target", action="append", choices=targets, help="default: all")
    parser.add_argument("--ones", action="store_true", help="as for integer arguments that are 1")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--write", type=Path, help="keep what was refused and compiled in this file")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.operations) - set(OPERATIONS)):
        parser.error(f"unknown operation {unknown[0]!r}; known: {', '.join(OPERATIONS)}")
    if asked.write and (asked.operations or asked.target or asked.ones):
        parser.error(
            "--write keeps all operations for all targets; leave out their names, --target and --ones"
        )
    if asked.write and not asked.write.parent.is_dir():
        parser.error(f"--write: there is no directory {str(asked.write.parent)!r}")
    results = []
    for case, target in pairs(asked.operations or OPERATIONS):
        if asked.target and target.name not in asked.target:
            continue
        made = compile_case(case, target, ones=asked.ones)
        results.append(made)
        if not asked.json:
            said = made.refused or (
                f"shared {made.shared}, spilled {made.spilled}, wide loads {made.wide_loads}, "
                f"{' '.join(made.matrix) or 'no matrix instruction'}"
            )
            print(f"{target.name:12} {case.name:36} {said}", flush=True)  # noqa: T201
    if asked.json:
        print(json.dumps([dataclasses.asdict(item) for item in results]))  # noqa: T201
    if asked.write:
        asked.write.write_text(json.dumps(as_refusals(results), indent=1) + "\n")


if __name__ == "__main__":
    main()
