"""Apply a plan to a model in place, and read back what a model really runs.

Needs torch, not Ray or a database: this is what trainers and servers import.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from autoprec.errors import ConversionError, PlanError, one_line
from autoprec.fingerprint import architecture_fingerprint, weights_fingerprint
from autoprec.kernels.calibration import Calibration, decode_smoothing
from autoprec.kernels.checked import static_shape
from autoprec.kernels.device import capability, devices_of
from autoprec.kernels.formats import FORMATS
from autoprec.kernels.registry import FormatModule, Level, Memo, Operation, implementation
from autoprec.plan import MODULE_RUNTIMES, ModulePlan, Plan, UnitPlan

_CLASSES: dict[str, type[nn.Module]] = {"linear": nn.Linear, "conv2d": nn.Conv2d, "embedding": nn.Embedding}


@dataclass(frozen=True)
class Applied:
    """What `apply_plan` did.

    Attributes:
        modules: Module path to (format, implementation), as read back from the model.
        warnings: Why the plan's figures may not hold here; also given through `warnings.warn`.
    """

    modules: dict[str, tuple[str, str]]
    warnings: tuple[str, ...]


def apply_plan(model: nn.Module, plan: Plan) -> Applied:
    """Change a model in place so that each unit runs in the plan's format.

    Every module is converted before the first is replaced: when one fails, the model is as it was. The
    weights that were replaced are freed afterwards, so the peak is the model plus its converted modules.

    The figures of a plan of the runtime `compile` hold for the model compiled after this,
    `torch.compile(model, options={"freezing": True})`, and called under `torch.no_grad()`.

    Args:
        model: A model of the architecture that the plan was made for, without a plan applied.
        plan: The plan.

    Returns:
        What runs now, read back from the model.

    Raises:
        PlanError: The plan is for another architecture, names a module that the model lacks or that is
            of another kind, or the model has a plan applied already.
        ConversionError: A kernel that the plan names does not run on this machine.
    """
    check_fits(model, plan)
    if plan.runtime not in MODULE_RUNTIMES:
        raise PlanError(
            f"the plan is for {plan.runtime}, which runs the model file that was written beside the plan; "
            "apply_plan changes PyTorch models"
        )
    notes = _unproven(model, plan)
    if emulated := emulated_formats(model, plan):
        notes += (f"{', '.join(emulated)}: no kernel here, only the rounding is reproduced, slowly",)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    convert_modules(model, plan)
    return Applied(read_applied(model, plan), notes)


def check_fits(model: nn.Module, plan: Plan) -> None:
    """Check that a plan is for a model as it came.

    Raises:
        PlanError: As for `apply_plan`.
    """
    if any(isinstance(module, FormatModule) for module in model.modules()):
        raise PlanError("the model has a plan applied already; build it anew before applying another")
    for unit, entry in _entries(plan):
        _check_module(model, unit, entry)
        if plan.runtime in MODULE_RUNTIMES:
            _check_kernel(unit, entry)
        elif unit.format not in FORMATS:
            raise PlanError(
                f"unit {unit.name!r}: unknown format {unit.format!r}; known: {', '.join(FORMATS)}"
            )
        elif entry.implementation != plan.runtime:
            raise PlanError(
                f"unit {unit.name!r}, module {entry.path!r}: the implementation is {entry.implementation!r}, "
                f"and in a plan for {plan.runtime} it is that"
            )
    if plan.architecture != architecture_fingerprint(model):
        raise PlanError(
            f"the plan was made for architecture {plan.architecture}, this {type(model).__name__} has "
            f"{architecture_fingerprint(model)}; tune this model, or load the model the plan was made for"
        )


def convert_modules(model: nn.Module, plan: Plan) -> None:
    """Replace the modules that a plan names, without checking that the plan is for this model.

    Raises:
        ConversionError: A kernel refuses a module; the model is then as it was.
    """
    memo: Memo = {}
    replaced: dict[nn.Module, nn.Module] = {}
    decided: dict[nn.Module, tuple[str, str, str]] = {}
    for unit, entry in _entries(plan):
        module = model.get_submodule(entry.path)
        wanted = (entry.path, unit.format, entry.implementation)
        before = decided.setdefault(module, wanted)
        if before[1:] != wanted[1:]:
            raise ConversionError(
                f"{entry.path} is the same module as {before[0]}, which the plan runs in "
                f"{before[1]}/{before[2]}, not {unit.format}/{entry.implementation}"
            )
        kernel = implementation(Operation(entry.operation), unit.format, entry.implementation)
        try:
            converted = kernel.convert(module, calibration_of(entry), memo)
        except MemoryError:
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, ConversionError) else one_line(error)
            raise ConversionError(f"{entry.path}: {reason}") from error
        if converted is not module:
            replaced[module] = converted.train(module.training)
    swap_modules(model, replaced)


def calibration_of(entry: ModulePlan) -> Calibration | None:
    """Return what a plan says of a module's input.

    Raises:
        ConversionError: Its smoothing cannot be read.
    """
    if entry.input_range is None:
        return None
    return Calibration(*entry.input_range, decode_smoothing(entry.smoothing))


def swap_modules(model: nn.Module, replaced: Mapping[nn.Module, nn.Module]) -> None:
    """Put each replacement in its module's place, under every name that the module is registered by."""
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if module in replaced:
            model.set_submodule(path, replaced[module])
    new = set(replaced.values())
    for encoder in model.modules():
        # Nested tensors are for its fused layers, which those with a replaced module no longer are.
        if isinstance(encoder, nn.TransformerEncoder) and not new.isdisjoint(encoder.modules()):
            encoder.use_nested_tensor = False


def read_applied(model: nn.Module, plan: Plan) -> dict[str, tuple[str, str]]:
    """Return for each module of a plan the (format, implementation) that the model really holds there."""
    found: dict[str, tuple[str, str]] = {}
    for _unit, entry in _entries(plan):
        module = model.get_submodule(entry.path)
        if isinstance(module, FormatModule):
            found[entry.path] = (module.format_name, module.implementation_name)
        else:
            found[entry.path] = (as_given_format(module), "aten")
    return found


def as_given_format(module: nn.Module) -> str:
    """Return the format of a module that nothing has replaced, from its weight's dtype."""
    weight = module.weight
    names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    dtype = weight.dtype if isinstance(weight, torch.Tensor) else None
    return names[dtype] if dtype in names else str(dtype)


def _entries(plan: Plan) -> list[tuple[UnitPlan, ModulePlan]]:
    return [(unit, entry) for unit in plan.units for entry in unit.modules]


def _check_module(model: nn.Module, unit: UnitPlan, entry: ModulePlan) -> None:
    try:
        module = model.get_submodule(entry.path)
    except AttributeError:
        raise PlanError(
            f"unit {unit.name!r}: the model has no module {entry.path!r}; the plan is for another model"
        ) from None
    if not isinstance(module, _CLASSES[entry.operation]):
        raise PlanError(
            f"unit {unit.name!r}: module {entry.path!r} is a {type(module).__name__}, the plan expects a "
            f"{_CLASSES[entry.operation].__name__}; the plan is for another model"
        )


def _check_kernel(unit: UnitPlan, entry: ModulePlan) -> None:
    try:
        implementation(Operation(entry.operation), unit.format, entry.implementation)
    except ConversionError as error:
        raise PlanError(f"unit {unit.name!r}, module {entry.path!r}: {error}") from None


def emulated_formats(model: nn.Module, plan: Plan) -> tuple[str, ...]:
    """Return the formats of a plan that the model's device has no kernels for: their speed tells nothing.

    Args:
        model: The model as it came.
        plan: A plan that fits it, for PyTorch.
    """
    found: dict[str, None] = {}
    for unit, entry in _entries(plan):
        module = model.get_submodule(entry.path)
        kernel = implementation(Operation(entry.operation), unit.format, entry.implementation)
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        if kernel.support(static_shape(module), weight.device).level is Level.EMULATED:
            found[unit.format] = None
    return tuple(found)


def _unproven(model: nn.Module, plan: Plan) -> tuple[str, ...]:
    if plan.evidence is None:
        return ("the plan has no evidence: nothing is known of its speed and quality",)
    device = plan.evidence.device
    notes = []
    here = capability(devices_of(model)[0])
    if device.capability != here:
        notes.append(
            f"the plan was measured on {device.name} ({device.capability}), this machine has {here}: "
            "its speed is not proven here; run `autoprec check`"
        )
    if plan.evidence.weights != weights_fingerprint(model):
        notes.append("the weights are not those the plan was measured with: its quality is not proven here")
    return tuple(notes)
