"""The profile of compiled PyTorch: that of eager PyTorch, scaled. It is a prior only.

Layers of one graph are fused, so none can be timed alone, and each plan that is compiled to learn about one
of them takes as long as a measured run. How fast the lossless plan is when compiled is measured; that what a
format saves in eager PyTorch is saved here in proportion is assumed. The surrogate learns from measured runs
where that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autoprec.comparing import refuse_difference
from autoprec.envs.measure import Measurer
from autoprec.envs.plans import make_plan
from autoprec.envs.profile import Profiled
from autoprec.envs.space import FORMAT_NAMES
from autoprec.envs.timing import TimingSettings
from autoprec.envs.units import Discovery
from autoprec.errors import CandidateError, RuntimeRefusedError
from autoprec.plan import COMPILE, EAGER, Plan
from autoprec.runtimes.compiled import CompiledExecutable
from autoprec.workload import iter_tensors

TIMING = TimingSettings(target=0.01, max_seconds=0.6, min_pairs=6)


def profile_compiled(
    measurer: Measurer,
    discovery: Discovery,
    eager: Profiled,
    architecture: str,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> tuple[Profiled, float]:
    """Compile the lossless plan and scale the eager profile to its speed.

    Args:
        measurer: The workload; it knows both runtimes.
        discovery: The units.
        eager: Their profile in eager PyTorch.
        architecture: Fingerprint of the model's structure.
        progress: Called with what is done and the share that is done.

    Returns:
        The profile: units, formats, implementations, bytes and local errors are those of `eager`. And the
        seconds that compiling the plan for the timed inputs took.

    Raises:
        RuntimeRefusedError: The model does not compile, or computes something else then.
    """
    profile = eager.profile
    own = [FORMAT_NAMES.index(unit.baseline) for unit in discovery.units]
    kernels = [profile.implementations[u][k] for u, k in enumerate(own)]
    formats = [unit.baseline for unit in discovery.units]

    def lossless(runtime: str) -> Plan:
        return make_plan(discovery, architecture, formats, kernels, eager.calibrations, runtime)

    progress("compiling", 0.0)
    try:
        with (
            measurer.executable(lossless(COMPILE)) as compiled,
            measurer.executable(lossless(EAGER)) as reference,
        ):
            assert isinstance(compiled, CompiledExecutable)
            expected, found = (
                list(iter_tensors(measurer.run_examples(each.model))) for each in (reference, compiled)
            )
            refuse_difference(found, expected, "compiled,")
            scale = 1 / measurer.time(reference, compiled, TIMING).ratio
            seconds = compiled.compile_seconds
    except RuntimeRefusedError:
        raise
    except CandidateError as error:
        raise RuntimeRefusedError(f"compile does not run the model as it came: {error}") from error
    return Profiled(replace(profile, time=scale * profile.time), eager.calibrations, COMPILE), seconds
