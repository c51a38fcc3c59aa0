"""What importing a part of the package loads: each is asked in a process of its own."""

import json
import subprocess
import sys

import pytest

HEAVY = {
    "torch",
    "ray",
    "sqlalchemy",
    "triton",
    "pydantic",
    "gymnasium",
    "optuna",
    "numpy",
    "scipy",
    "plotly",
    "rich",
}


def loaded_by(statement):
    code = f"import sys, json; {statement}; print(json.dumps([n.partition('.')[0] for n in sys.modules]))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(found.stdout.splitlines()[-1]))


@pytest.mark.parametrize(("statement", "absent"), [
    ("import autoprec", HEAVY),
    ("import autoprec; dir(autoprec); autoprec.__version__; autoprec.UserError", HEAVY),
    ("import autoprec.workload", HEAVY),
    ("import autoprec.kernels.formats", HEAVY),
    ("from autoprec.cli import app", HEAVY - {"rich"}),
    ("from autoprec import Plan", HEAVY - {"pydantic"}),
    ("import autoprec.store", HEAVY),
    ("from autoprec.store.store import Store", {"torch", "ray", "triton", "gymnasium"}),
    ("from autoprec.kernels.registry import implementations, Operation as O; implementations(O.LINEAR)",
     {"pydantic", "ray", "sqlalchemy", "gymnasium", "optuna", "rich"}),
    ("from autoprec import apply_plan", {"ray", "sqlalchemy", "gymnasium", "optuna", "rich", "plotly"}),
    ("from autoprec import tune, best_plan, check", {"ray", "optuna"}),
])  # fmt: skip
def test_what_is_not_needed_is_not_loaded(statement, absent):
    assert loaded_by(statement) & absent == set()


def test_every_public_name_is_there_and_no_other():
    import autoprec

    for name in autoprec.__all__:
        assert getattr(autoprec, name) is not None
        assert name in dir(autoprec)
    assert set(autoprec.__all__) == set(autoprec._HOME)
    with pytest.raises(AttributeError, match="no attribute 'tunes'"):
        _ = autoprec.tunes


def test_telemetry_is_off_unless_the_user_turned_it_on():
    code = "import os, autoprec; print(os.environ['RAY_USAGE_STATS_ENABLED'])"
    for given, expected in (({}, "0"), ({"RAY_USAGE_STATS_ENABLED": "1"}, "1")):
        found = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=given
        )
        assert found.stdout.strip() == expected
