"""Every kernel, compiled on this machine for processors that are not here."""

import json
import os
import subprocess
import sys

import pytest

from autoprec.kernels.families import load_compiled, load_families
from autoprec.kernels.jit.compiling import OPERATIONS, TARGETS, cases, pairs

CASES = {case.name: case for case in cases()}
LIMITS = {target.name: target for target in TARGETS}


@pytest.fixture(scope="module")
def compiled():
    """Compile all, two targets at once, outside this process, whose kernels may be interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    names = [target.name for target in TARGETS]
    running = []
    for share in (names[::2], names[1::2]):
        options = [word for name in share for word in ("--target", name)]
        command = [sys.executable, "-m", "autoprec.kernels.jit.compiling", "--json", *options]
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    found = [item for process in running for item in json.loads(process.communicate()[0])]
    assert [process.returncode for process in running] == [0, 0]
    return {(item["case"], item["target"]): item for item in found}


@pytest.mark.timeout(900)
def test_arguments_that_are_one_compile_too():
    """Triton makes constants of integer arguments that are 1; the interpreter does not, and cannot tell."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    options = ["--json", "--ones", "--target", "cuda:90"]
    command = [sys.executable, "-m", "autoprec.kernels.jit.compiling", *options]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    refused = {item["case"]: item["refused"] for item in json.loads(run.stdout) if item["refused"]}
    assert refused == {}


def every(compiled):
    return ((CASES[case], LIMITS[target], item) for (case, target), item in compiled.items())


@pytest.mark.timeout(1500)
def test_every_case_was_tried_for_every_target(compiled):
    assert set(compiled) == {(case.name, target.name) for case, target in pairs()}
    assert {case.partition(".")[0] for case in CASES} == set(OPERATIONS)


def test_only_ampere_refuses_and_only_e4m3(compiled):
    for case, target, item in every(compiled):
        refused = target.name == "cuda:80" and "float8_e4m3fn" in case.operands
        assert bool(item["refused"]) == refused, (case.name, target.name, item["refused"])
        if refused:
            assert "fp8e4nv not supported" in item["refused"]


def test_matrix_kernels_use_matrix_instructions(compiled):
    """Hopper's and Blackwell's own ones need 64 rows; narrower tiles use those of a warp."""
    own = {"cuda:80": "mma.sync", "cuda:90": "wgmma", "cuda:100": "tcgen05", "hip:gfx942": "v_mfma"}
    for case, target, item in every(compiled):
        if not case.matrix or item["refused"]:
            continue
        wanted = own[target.name]
        integers = "int8" in case.operands
        if case.constants["BLOCK_M"] < 64 and target.name.startswith("cuda"):
            wanted = "mma.sync"
        elif target.name == "cuda:100" and integers:
            wanted = "mma.sync"  # tcgen05 multiplies no integers in Triton
        assert any(wanted in name for name in item["matrix"]), (case.name, target.name, item["matrix"])


def test_nothing_spills_and_shared_memory_suffices(compiled):
    for case, target, item in every(compiled):
        assert item["spilled"] == 0, (case.name, target.name, item["spilled"])
        assert item["shared"] <= target.shared, (case.name, target.name, item["shared"])


def test_loads_are_wide(compiled):
    for case, target, item in every(compiled):
        assert item["refused"] or item["wide_loads"], (case.name, target.name)


def test_what_ships_is_what_compilers_say(compiled):
    """`python -m autoprec.kernels.jit.compiling --write kernels/families/compiled.json` renews it."""
    import triton

    shipped = load_compiled()
    assert set(shipped) == set(LIMITS)
    assert set(shipped) <= {str(family.triton) for family in load_families().values() if family.triton}
    for name, entry in shipped.items():
        if entry.triton != triton.__version__:
            pytest.skip(f"compiled.json was written by Triton {entry.triton}, this is {triton.__version__}")
        wanted = {case.name for case, target in pairs() if case.operands and target.name == name}
        assert {label.partition(" of ")[0] for label in (*entry.refused, *entry.compiled)} == wanted
        refused = {label.partition(" of ")[0] for label in entry.refused}
        assert refused == {
            case for (case, target), item in compiled.items() if target == name and item["refused"]
        }
