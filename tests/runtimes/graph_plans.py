"""Plans for graph runtimes."""

from autoprec.envs.plans import make_plan


def plan_for(prepared, runtime, formats, calibrations=()):
    units = prepared.discovery.units
    names = [[runtime.name] * len(unit.modules) for unit in units]
    chosen = [formats.get(unit.name, "fp32") for unit in units]
    return make_plan(
        prepared.discovery, prepared.context.architecture, chosen, names, dict(calibrations), runtime.name
    )
