"""From an assignment of formats to a plan, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoprec.envs.space import FORMAT_NAMES, Assignment, Profile
from autoprec.envs.units import Discovery
from autoprec.errors import PlanError
from autoprec.kernels.calibration import Calibrations, encode_smoothing, needed_by
from autoprec.kernels.formats import FORMATS
from autoprec.plan import EAGER, ModulePlan, Plan, UnitPlan


def as_given(discovery: Discovery, architecture: str) -> Plan:
    """Return the plan that changes nothing: every unit in its own format, by the module as it came."""
    units = tuple(
        UnitPlan(
            name=unit.name,
            format=unit.baseline,
            modules=tuple(
                ModulePlan(path=module.path, operation=module.operation.value, implementation="aten")
                for module in unit.modules
            ),
        )
        for unit in discovery.units
    )
    return Plan(architecture=architecture, units=units, left=discovery.left)


def make_plan(
    discovery: Discovery,
    architecture: str,
    formats: Sequence[str],
    implementations: Sequence[Sequence[str]],
    calibrations: Mapping[str, Calibrations],
    runtime: str = EAGER,
) -> Plan:
    """Return the plan that runs each unit in a format by the given implementations.

    Args:
        discovery: The units.
        architecture: Fingerprint of the model's structure.
        formats: See `reformed`, as for what follows.
        implementations: The same.
        calibrations: The same.
        runtime: The same.
    """
    return reformed(as_given(discovery, architecture), formats, implementations, calibrations, runtime)


def reformed(
    plan: Plan,
    formats: Sequence[str],
    implementations: Sequence[Sequence[str]],
    calibrations: Mapping[str, Calibrations],
    runtime: str,
) -> Plan:
    """Return a plan of the same units in other formats, without evidence.

    Args:
        plan: The plan.
        formats: A format for each unit.
        implementations: For each unit, an implementation for each of its modules.
        calibrations: What calibration told of the input of each module path; used where a format needs it.
        runtime: What executes it.
    """
    units = []
    for unit, name, chosen in zip(plan.units, formats, implementations, strict=True):
        modules = []
        for module, implementation in zip(unit.modules, chosen, strict=True):
            needed = needed_by(name, module.path, calibrations)
            modules.append(
                ModulePlan(
                    path=module.path,
                    operation=module.operation,
                    implementation=implementation,
                    input_range=None if needed is None else (needed.low, needed.high),
                    smoothing=None if needed is None else encode_smoothing(needed.smoothing),
                )
            )
        units.append(UnitPlan(name=unit.name, format=name, modules=tuple(modules)))
    return Plan(architecture=plan.architecture, runtime=runtime, units=tuple(units), left=plan.left)


def plan_of(
    discovery: Discovery,
    architecture: str,
    profile: Profile,
    assignment: Assignment,
    calibrations: Mapping[str, Calibrations],
    runtime: str = EAGER,
) -> Plan:
    """Return the plan of an assignment, with the implementations that the profile found best."""
    return make_plan(
        discovery,
        architecture,
        [FORMAT_NAMES[index] for index in assignment],
        [profile.implementations[unit][index] for unit, index in enumerate(assignment)],
        calibrations,
        runtime,
    )


def assignment_of(formats: Sequence[str]) -> Assignment:
    """Return the format indices of format names.

    Raises:
        PlanError: A name is unknown to this version.
    """
    for name in formats:
        if name not in FORMATS:
            raise PlanError(f"unknown format {name!r}; this version knows {', '.join(FORMAT_NAMES)}")
    return tuple(FORMAT_NAMES.index(name) for name in formats)
