"""The parts of the comparison with other tools that need none of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from autoprec.kernels.formats import FORMATS
from benchmarks.peers.choices import EXACTNESS, NEAREST, PeerResult, Ratio, failed, last_error, map_choices
from benchmarks.peers.showing import show
from benchmarks.peers.venvs import HERE, PEERS, default_place

UNITS = {"a.{q,k}": ("a.q", "a.k"), "b": ("b",)}


def every_format(unit: str, name: str) -> bool:
    return True


def test_each_recipe_ends_in_formats_that_exist_and_has_a_place_in_the_order() -> None:
    assert set(NEAREST) == set(EXACTNESS)
    for names in NEAREST.values():
        assert set(names) <= set(FORMATS)
        assert names[-1] == "fp32"


def test_a_unit_takes_the_more_exact_of_what_its_modules_have() -> None:
    formats, notes = map_choices(
        {"a.q": "int8 static", "a.k": "int8 weights", "b": "bf16"}, UNITS, every_format
    )
    assert formats == {"a.{q,k}": "int8_weight_only", "b": "bf16"}
    assert notes == ["a.{q,k} is one unit here, and has int8 weights of int8 static, int8 weights"]


def test_a_module_that_is_not_named_is_as_it_came() -> None:
    formats, _ = map_choices({"a.q": "int8 static"}, UNITS, every_format)
    assert formats == {"a.{q,k}": "fp32", "b": "fp32"}


def test_where_a_format_does_not_run_the_next_is_taken_and_named() -> None:
    formats, notes = map_choices(
        {"b": "int8 static smooth"}, UNITS, lambda unit, name: name in ("fp32", "int8_static")
    )
    assert formats["b"] == "int8_static"
    assert notes == ["b: int8 static smooth runs as int8_static"]


def test_a_layer_without_a_unit_is_named() -> None:
    _, notes = map_choices({"c": "int8 static", "d": "fp32"}, UNITS, every_format)
    assert notes == ["no unit here: c"]


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(ValueError, match="b has the recipe 'int2'; known: fp32, "):
        map_choices({"b": "int2"}, UNITS, every_format)


def test_a_result_comes_back_from_json_as_it_was() -> None:
    result = PeerResult(
        peer="x",
        version="1",
        status="ok",
        choices={"b": "int8 static"},
        beyond={"MatMul": 2},
        drop=0.1,
        speed=Ratio(value=2.0, low=1.5, high=2.5),
        notes=("n",),
        quiet=True,
    )
    assert PeerResult.model_validate_json(result.model_dump_json()) == result


@pytest.mark.parametrize("text", ['{"peer": "x"}', '{"peer": "x", "status": "ok", "drop": NaN}', "[]"])
def test_a_result_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        PeerResult.model_validate_json(text)


def test_a_refusal_is_one_line() -> None:
    stderr = 'Traceback (most recent call last):\n  File "x"\n    y\nValueError: no\n  such thing\nexit now\n'
    assert last_error(stderr) == "ValueError: no"
    assert failed("x", " a\n b ", quiet=False).reason == "a b"
    assert failed("x", last_error(""), quiet=False).reason == "it said nothing"


def test_each_peer_has_its_requirements_and_its_file() -> None:
    for name, module in PEERS.items():
        assert (HERE / f"requirements-{name}.txt").is_file()
        assert (HERE / f"{module}.py").is_file()


def test_the_place_of_the_environments_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOPREC_PEERS_DIR", "/some/where")
    assert str(default_place()) == "/some/where"
    monkeypatch.delenv("AUTOPREC_PEERS_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert str(default_place()) == "/cache/autoprec-peers"


def test_an_unknown_peer_is_named_on_one_line() -> None:
    command = [sys.executable, "-m", "benchmarks.peers", "setup", "nobody"]
    child = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent.parent)
    assert child.returncode == 2
    assert child.stderr.splitlines()[-1].endswith(
        "unknown peer 'nobody'; known: nncf, modelopt, inc, autoround"
    )


def test_the_table_names_who_did_not_run_and_that_the_machine_was_not_quiet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    speed = {"value": 2.0, "low": 1.5, "high": 2.5}
    ran = PeerResult(
        peer="x", version="1", status="ok", drop=0.1, choices={"b": "int8 static"}, no_speed="why"
    )
    ours = {"speed": speed, "drop": 0.2, "runtime": "eager"}
    rows = {
        "quiet": False,
        "workload": "w",
        "limit": 0.5,
        "peers": [ran.model_dump(), failed("y", "ValueError: no", quiet=False).model_dump()],
        "on_our_kernels": {"x": {**ours, "autoprec_over_it": speed, "notes": ["lost"]}},
        "autoprec": [{"title": "t", "evaluations": 1, "final_evaluations": 2, "seconds": 3.0, **ours}],
    }
    show({"rows": rows, "where": {"device": "d", "threads": 2}})
    shown = capsys.readouterr().out
    for words in ("NOT a quiet machine", "y did not run: ValueError: no", "1 int8 static; why", "lost"):
        assert words in shown
