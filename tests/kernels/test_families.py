import json
import re
from pathlib import Path

import pytest
import torch

from autoprec.doctor import describe_family
from autoprec.kernels.device import cpu_flags
from autoprec.kernels.families import (
    OPERANDS,
    Chip,
    Machine,
    detect,
    examine,
    load_compiled,
    load_families,
    native,
    read_compiled,
    read_families,
    recognise,
    roofline,
    usable_flags,
)
from autoprec.kernels.registry import Level

ROOT = Path(__file__).parent.parent.parent
FAMILIES = load_families()
AVX2 = {"avx", "avx2", "fma"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
AMX = AVX512 | {"avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"}
GOOD = """
title = "Tensor processor"
vendor = "Somebody"
verified = false
verified_how = "described only"
preferred_fp8 = "float8_e5m2"

[match]
device = "cuda"
archs = ["12.0"]

[triton]
backend = "cuda"
arch = 120
warp_size = 32

[shared_memory]
bytes = 101376
source = "its manual"

[native]
float32 = { by = "cores", source = "its manual" }
float8_e5m2 = { by = "tensor cores", source = "its manual" }

[[chips]]
name = "One"
source = "its data sheet"
memory_gb_per_s = 1000
rates = { float32 = 50 }
"""


def test_all_that_the_project_speaks_of_is_described():
    assert set(FAMILIES) == {
        "ampere", "ampere_ga10x", "ada", "hopper", "blackwell", "cdna2", "cdna3",
        "amx", "avx512", "avx2", "xpu", "ascend",
    }  # fmt: skip
    assert [name for name, family in FAMILIES.items() if family.verified] == ["avx512"]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_number_has_a_source(family):
    sourced = [*family.claims.values(), *family.chips, *filter(None, [family.shared_memory])]
    assert all(item.source.strip() for item in sourced)
    for chip in family.chips:
        assert chip.rates or chip.memory_gb_per_s, f"{chip.name} tells nothing"


def test_no_rate_is_out_of_all_proportion():
    """A slip between tera and peta, or by a column, shows here."""
    for operand in OPERANDS:
        rates = [c.rates[operand] for f in FAMILIES.values() for c in f.chips if operand in c.rates]
        assert not rates or max(rates) <= 100 * min(rates)
    for chip in (chip for family in FAMILIES.values() for chip in family.chips):
        order = ("float32", "tf32", "bfloat16", "int8", "int4")
        by_width = [chip.rates[operand] for operand in order if operand in chip.rates]
        assert by_width == sorted(by_width), f"{chip.name} is slower at narrower numbers"
        if "tf32" in chip.rates:
            assert chip.rates["bfloat16"] <= 2.1 * chip.rates["tf32"], f"{chip.name} has a rate with sparsity"
    bandwidths = [c.memory_gb_per_s for f in FAMILIES.values() for c in f.chips if c.memory_gb_per_s]
    assert max(bandwidths) <= 100 * min(bandwidths)


def test_fp8_is_the_variant_that_the_hardware_has():
    assert FAMILIES["cdna3"].preferred_fp8 == "float8_e4m3fnuz"
    assert native(FAMILIES["cdna3"], "float8_e4m3fn").level is Level.EMULATED
    for name in ("ada", "hopper", "blackwell"):
        assert FAMILIES[name].preferred_fp8 == "float8_e4m3fn"
    for name in ("ampere", "ampere_ga10x", "cdna2", "amx", "avx512", "avx2"):
        assert FAMILIES[name].preferred_fp8 is None
    assert all(hasattr(torch, f.preferred_fp8) for f in FAMILIES.values() if f.preferred_fp8)


@pytest.mark.parametrize(("machine", "name"), [
    (Machine("cuda", "8.0"), "ampere"),
    (Machine("cuda", "8.6"), "ampere_ga10x"),
    (Machine("cuda", "8.9"), "ada"),
    (Machine("cuda", "9.0"), "hopper"),
    (Machine("cuda", "10.0"), "blackwell"),
    (Machine("hip", "gfx90a"), "cdna2"),
    (Machine("hip", "gfx942"), "cdna3"),
    (Machine("cpu", flags=frozenset(AVX2)), "avx2"),
    (Machine("cpu", flags=frozenset(AVX512)), "avx512"),
    (Machine("cpu", flags=frozenset(AMX)), "amx"),
    (Machine("xpu"), "xpu"),
    (Machine("npu"), "ascend"),
    (Machine("cuda", "7.5"), None),
    (Machine("cuda", "12.0"), None),
    (Machine("hip", "gfx1100"), None),
    (Machine("hip", "9.0"), None),
    (Machine("cpu", flags=frozenset({"sse4_2"})), None),
    (Machine("cpu", flags=frozenset({"asimd"})), None),
    (Machine("mps"), None),
])  # fmt: skip
def test_a_machine_is_recognised(machine, name):
    found = recognise(machine, FAMILIES)
    assert (found.name if found else None) == name


def test_a_processor_claims_what_its_flags_allow():
    def claims(flags):
        return set(recognise(Machine("cpu", flags=frozenset(flags)), FAMILIES).claims)

    assert claims(AVX2) == {"float32"}
    assert claims(AVX2 | {"avx_vnni"}) == {"float32", "int8"}
    assert claims(AVX512) == {"float32"}
    assert claims(AVX512 | {"avx512_vnni", "avx512_bf16"}) == {"float32", "int8", "bfloat16"}
    assert claims(AMX) == {"float32", "int8", "bfloat16", "float16"}


def test_flags_that_torch_does_not_use_do_not_count():
    flags = frozenset(AMX | {"sse4_2"})
    assert usable_flags(flags, "AVX512") == flags
    assert usable_flags(flags, "AVX2") == frozenset(AVX2 | {"sse4_2"})
    assert usable_flags(flags, "DEFAULT") == frozenset({"sse4_2"})


def test_this_machine_is_examined():
    machine = examine(torch.device("cpu"))
    assert machine.device == "cpu" and machine.flags <= cpu_flags()
    assert detect(torch.device("cpu")) == recognise(machine, FAMILIES)
    assert detect(torch.device("meta")) is None
    if family := detect(torch.device("cpu")):
        assert describe_family(torch.device("cpu")).startswith(f"Family: {family.title} (")
        assert ("multiplies natively float32" in describe_family(torch.device("cpu"))) == (
            "float32" in family.claims
        )
    assert "none" in describe_family(torch.device("meta"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_this_gpu_is_as_described():
    device = torch.device("cuda")
    family = detect(device)
    assert family is not None
    properties = torch.cuda.get_device_properties(device)
    assert properties.warp_size == family.triton.warp_size
    if family.match.device == "cuda":
        assert properties.shared_memory_per_block_optin == family.shared_memory.bytes


def test_a_file_in_the_folder_is_all_it_takes(tmp_path):
    (tmp_path / "tensor.toml").write_text(GOOD)
    (tmp_path / "notes.md").write_text("not a family")
    families = read_families(tmp_path)
    family = recognise(Machine("cuda", "12.0"), families)
    assert family is not None and family.name == "tensor"
    assert str(family.triton) == "cuda:120"
    assert native(family, "float8_e5m2").level is Level.NATIVE
    assert family.chip("NVIDIA H200") is None


@pytest.mark.parametrize(("old", "new", "message"), [
    ('vendor = "Somebody"', "", "tensor.toml: vendor is missing"),
    ('vendor = "Somebody"', "vendor = 3", "tensor.toml: vendor is 3; give a text"),
    ('vendor = "Somebody"', 'vendor = ""', "tensor.toml: vendor is ''"),
    ('vendor = "Somebody"', 'vendor = "S"\ncolour = "red"', "tensor.toml: colour is 'red'; no such key"),
    ("verified = false", 'verified = "no"', "tensor.toml: verified is 'no'; give true or false"),
    ('verified_how = "described only"', "", "verified_how is missing"),
    ('"float8_e5m2"\n', '"float8_e4m3fn"\n', "preferred_fp8 is 'float8_e4m3fn'"),
    ('device = "cuda"', 'device = "gpu"', "tensor.toml: match: device is 'gpu'; give one of cuda, hip"),
    ('archs = ["12.0"]', "", "tensor.toml: match: archs is missing"),
    ('archs = ["12.0"]', 'archs = "12.0"', "match: archs is '12.0'; give a list of texts"),
    ('archs = ["12.0"]', 'archs = ["sm_120"]', "match: archs is 'sm_120'; name it as 9.0"),
    ('archs = ["12.0"]', 'archs = ["12.0"]\nflags = ["avx2"]', "match: flags is ['avx2']; leave it out"),
    ('archs = ["12.0"]', 'archs = ["12.0"]\npriority = 1.5', "match: priority is 1.5; give a whole number"),
    ('backend = "cuda"', 'backend = "metal"', "tensor.toml: triton: backend is 'metal'"),
    ("arch = 120", 'arch = "120"', "triton: arch is '120'"),
    ("bytes = 101376", "bytes = true", "shared_memory: bytes is True"),
    ("bytes = 101376\nsource = \"its manual\"", "bytes = 101376", "shared_memory: source is missing"),
    ("float32 = { by", "float33 = { by", "native: float33 is no number type; known: float32"),
    ('by = "cores", source = "its manual"', 'by = "cores"', "native: float32: source is missing"),
    ('by = "cores",', 'by = "cores", operations_per_cycle = 3,', "float32: operations_per_cycle is 3"),
    ('by = "cores",', 'by = "cores", needs = ["x"],', "native: float32: needs is ('x',); leave it out"),
    ("float32 = 50", "float32 = -50", "tensor.toml: chips[0]: rates: float32 is -50; give a number greater"),
    ("float32 = 50", "float32 = inf", "chips[0]: rates: float32 is inf"),
    ("float32 = 50", "float32 = '50'", "chips[0]: rates: float32 is '50'; give a number"),
    ("float32 = 50", "int8 = 50", "chips[0]: rates: int8 is 50.0; the family does not multiply int8"),
    ("memory_gb_per_s = 1000", "memory_gb_per_s = 0", "chips[0]: memory_gb_per_s is 0"),
    ("memory_gb_per_s = 1000", "memory_gb_per_h = 9", "chips[0]: memory_gb_per_h is 9; no such key"),
    ('source = "its data sheet"', "", "tensor.toml: chips[0]: source is missing"),
    ("[native]", "[native", "tensor.toml is no TOML"),
])  # fmt: skip
def test_what_a_file_should_not_say_is_refused_with_its_place(tmp_path, old, new, message):
    assert old in GOOD
    (tmp_path / "tensor.toml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ValueError, match=re.escape(message)):
        read_families(tmp_path)


def test_two_families_that_cannot_be_told_apart_are_refused(tmp_path):
    (tmp_path / "tensor.toml").write_text(GOOD)
    (tmp_path / "twin.toml").write_text(GOOD)
    with pytest.raises(ValueError, match=r"twin\.toml: match is .*tensor\.toml fits the same"):
        read_families(tmp_path)
    (tmp_path / "twin.toml").write_text(GOOD.replace('archs = ["12.0"]', 'archs = ["12.0"]\npriority = 1'))
    assert recognise(Machine("cuda", "12.0"), read_families(tmp_path)).name == "twin"


def test_what_compiling_refused_overrides_the_claim(tmp_path):
    file = tmp_path / "compiled.json"
    file.write_text(json.dumps({
        "cuda:89": {
            "triton": "3.7.1",
            "refused": {"linear:float8_e5m2": "no such dot", "weight_only:int4:bfloat16": "no such shift"},
            "compiled": ["linear:float8_e4m3fn", "linear:bfloat16", "quantize:float32"],
        },
        "hip:gfx942": {"triton": "3.7.1", "refused": {}, "compiled": ["linear:float8_e4m3fn"]},
    }))  # fmt: skip
    compiled = read_compiled(file)
    refused = native(FAMILIES["ada"], "float8_e5m2", compiled)
    assert refused.level is Level.REFUSED
    assert refused.reason == "Triton 3.7.1 does not compile linear:float8_e5m2 for cuda:89: no such dot"
    assert native(FAMILIES["ada"], "int4", compiled).level is Level.REFUSED
    for operand in ("float8_e4m3fn", "bfloat16", "int8"):
        assert native(FAMILIES["ada"], operand, compiled).level is Level.NATIVE
    assert native(FAMILIES["hopper"], "float8_e5m2", compiled).level is Level.NATIVE
    widened = native(FAMILIES["cdna3"], "float8_e4m3fn", compiled)
    assert widened.level is Level.EMULATED and "float8_e4m3fn" in widened.reason
    with pytest.raises(ValueError, match="operand is 'int3'"):
        native(FAMILIES["ada"], "int3", compiled)


@pytest.mark.parametrize(("values", "message"), [
    ("[", "compiled.json is no JSON"),
    ("[]", "compiled.json is []; give a table"),
    ('{"cuda:80": {"refused": {}, "compiled": []}}', "compiled.json: cuda:80: triton is missing"),
    ('{"cuda:80": {"triton": "3", "compiled": []}}', "compiled.json: cuda:80: refused is missing"),
    ('{"cuda:80": {"triton": "3", "refused": {"a": 1}}}', "cuda:80: refused: a is 1; give a text"),
    ('{"cuda:80": {"triton": "3", "refused": {"a": "b"}, "compiled": ["a"]}}', "cuda:80: compiled is ['a']"),
    ('{"cuda:80": {"triton": "3", "refused": {}, "compiled": [], "x": 1}}', "cuda:80: x is 1; no such key"),
])  # fmt: skip
def test_a_malformed_record_of_compiling_is_refused(tmp_path, values, message):
    file = tmp_path / "compiled.json"
    file.write_text(values)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_compiled(file)


def test_the_record_of_compiling_is_about_described_families():
    targets = {str(family.triton) for family in FAMILIES.values() if family.triton}
    assert set(load_compiled()) <= targets
    for told in load_compiled().values():
        for case in (*told.refused, *told.compiled):
            assert any(operand in re.findall(r"\w+", case) for operand in OPERANDS), (
                f"{case} names no number type"
            )


def test_the_roofline_is_the_larger_bound():
    chip = FAMILIES["hopper"].chip("NVIDIA H200")
    assert roofline(chip, "bfloat16", 989.5e12, 4.8e9) == pytest.approx(1)
    assert roofline(chip, "bfloat16", 989.5e9, 4.8e12) == pytest.approx(1)
    assert roofline(chip, "int4", 1e12, 4.8e12) == pytest.approx(1)  # no peak: the memory still bounds it
    nothing = Chip("x", "y", None, None, None, {})
    assert roofline(nothing, "int8", 1, 1) is None
    for bad in ((chip, "int3", 1, 1), (chip, "int8", -1, 1), (chip, "int8", 1, float("nan"))):
        with pytest.raises(ValueError, match=r"operand is 'int3'|flops is -1|moved is nan"):
            roofline(*bad)


def test_the_table_of_the_documentation_is_that_of_the_files():
    rows = ["| file | family | recognised by | preferred fp8 | verified |", "| --- | --- | --- | --- | --- |"]
    for name, family in FAMILIES.items():
        by = ", ".join((*family.match.archs, *family.match.flags)) or family.match.device
        verified = f"{'yes' if family.verified else 'no'}: {family.verified_how}"
        rows.append(f"| `{name}` | {family.title} | {by} | {family.preferred_fp8 or 'none'} | {verified} |")
    table = "\n".join(rows)
    assert table in (ROOT / "docs" / "devices.md").read_text(), f"docs/devices.md should have:\n{table}"
