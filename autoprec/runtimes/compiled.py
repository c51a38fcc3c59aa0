"""PyTorch compiled: modules are replaced as in `eager`, then the whole model goes through inductor."""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from autoprec.errors import CandidateError, RuntimeRefusedError, one_line
from autoprec.kernels.registry import held_bytes
from autoprec.plan import COMPILE, Plan
from autoprec.runtimes.eager import EagerExecutable, converted_copy
from autoprec.runtimes.runtime import Runtime
from autoprec.runtimes.structure import flatten

Shapes = tuple[torch.Size, ...]

OPTIONS = {"freezing": True}
"""Inductor packs weights once, as constants of the graph."""
MOST_STATIC = 4
"""Distinct shapes in the timed runs beyond which none is compiled for itself: dynamo takes 8 in all."""
_INSTALL = "install a C++ compiler with its headers (Debian, Ubuntu: apt-get install g++), or name one in CXX"


class CompileRuntime(Runtime):
    """Replaces modules in a copy of the model and compiles that by `torch.compile`.

    Args:
        run_examples: Runs a model over the inputs that are timed.

    Raises:
        RuntimeRefusedError: There is no C++ compiler, or it does not work.
    """

    name = COMPILE

    def __init__(self, run_examples: Callable[[nn.Module], object]) -> None:
        self._run_examples = run_examples
        _try_compiler()

    @property
    def versions(self) -> dict[str, str]:
        """See `Runtime.versions`: the C++ compiler decides speed."""
        from torch._inductor.cpp_builder import get_compiler_version_info, get_cpp_compiler

        return {"c++": get_compiler_version_info(get_cpp_compiler()).splitlines()[0].strip()}

    def build(self, model: nn.Module, plan: Plan) -> CompiledExecutable:
        """See `Runtime.build`: everything that the timed runs need is compiled here.

        Raises:
            CandidateError: Nothing of the model could be compiled; says why.
        """
        executable = CompiledExecutable(converted_copy(model, plan), plan)
        try:
            executable.compile(self._run_examples)
        except BaseException:
            executable.close()
            raise
        return executable


class CompiledExecutable(EagerExecutable):
    """A converted copy of the user's model whose `forward` is compiled.

    Attributes:
        compile_seconds: What compiling for the timed runs took.
    """

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        super().__init__(model, plan)
        self.compile_seconds = 0.0
        self._compiled: _CompiledForward | None = None

    def compile(self, run_examples: Callable[[nn.Module], object]) -> None:
        """Run the copy as it is, which shows whether every replaced module runs, and then compile it.

        Dynamo traces the same Python code, but hooks in it would go into the graph.

        Raises:
            CandidateError: Nothing of the model could be compiled; says why.
        """
        shapes: set[Shapes] = set()

        def see(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            shapes.add(_shapes(args, kwargs))

        handle = self.model.register_forward_pre_hook(see, with_kwargs=True)
        run_examples(self.model)
        handle.remove()
        self._remove_hooks()
        if self.idle():
            return  # the plan has failed
        started = time.perf_counter()
        self._compiled = _CompiledForward(self.model.forward, shapes)
        self.model.forward = self._compiled
        with self._compiled.keeping_constants():
            run_examples(self.model)
        self.compile_seconds = time.perf_counter() - started
        if not self._compiled.graphs:
            said = self._compiled.obstacle or "the workload calls parts of it, never the model itself"
            raise CandidateError(f"torch.compile captures no graph of this model: {said}")

    @property
    def graphs(self) -> int:
        """Graphs that were compiled so far."""
        return self._compiled.graphs if self._compiled else 0

    def held_bytes(self) -> int:
        """See `Executable.held_bytes`: weights that inductor packed lie beside those of the model."""
        return held_bytes(self.model, self._compiled.constants if self._compiled else ())

    def close(self) -> None:
        """See `Executable.close`."""
        super().close()
        self._compiled = None
        # Dynamo keeps what it compiled with the model's code, which other candidates run too.
        torch._dynamo.reset()


class _CompiledForward:
    """Stands in the place of a model's `forward`.

    Whatever the mode of the caller, the graphs run in one, or each would be compiled for every mode. Shapes
    of the timed runs have graphs of their own; all others share one for dynamic shapes.

    Attributes:
        graphs: Graphs that were compiled so far.
        constants: Weights as the graphs of the timed runs hold them.
    """

    def __init__(self, forward: Callable[..., Any], timed: set[Shapes]) -> None:
        self.graphs = 0
        self.constants: list[Tensor] = []
        self._keeping = False
        self._timed = timed if len(timed) <= MOST_STATIC else set()
        self._breaks = _graph_breaks()

        # A graph belongs to the function that compiled it: two of them, or timed shapes could run in the
        # dynamic graph.
        def static(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
            return self._compile(graph, inputs)

        def dynamic(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
            return self._compile(graph, inputs)

        self._static = torch.compile(forward, backend=static, dynamic=False)
        self._dynamic = torch.compile(forward, backend=dynamic, dynamic=True)

    @property
    def obstacle(self) -> str:
        """Why dynamo broke the graph, as far as it says; empty where it did not."""
        new = [reason for reason, count in _graph_breaks().items() if count > self._breaks.get(reason, 0)]
        return new[0].splitlines()[0] if new else ""

    @contextmanager
    def keeping_constants(self) -> Iterator[None]:
        """Keep the constants of graphs that are compiled meanwhile."""
        self._keeping = True
        try:
            yield
        finally:
            self._keeping = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model.

        Raises:
            CandidateError: It cannot be compiled for these inputs.
        """
        with torch.inference_mode(False), torch.no_grad():
            timed = _shapes(args, kwargs) in self._timed
            # Containers stay the caller's own: a model may change what they hold.
            args = tuple(_usual(value, views=not timed) for value in args)
            kwargs = {name: _usual(value, views=not timed) for name, value in kwargs.items()}
            try:
                # Beyond the limit dynamo would run the model as it is, and say nothing.
                with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
                    if timed:
                        return self._static(*args, **kwargs)
                    # Or numbers of the model (an epsilon) would be dynamic too, until inductor gives up.
                    with torch._dynamo.config.patch(specialize_float=True):
                        return self._dynamic(*args, **kwargs)
            except TorchDynamoException as error:
                raise _failure(error) from error

    def _compile(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        def inner(frozen: torch.fx.GraphModule, given: Sequence[Any], **settings: Any) -> Any:
            if self._keeping:
                held = (
                    operator.attrgetter(str(node.target))(frozen)
                    for node in frozen.graph.find_nodes(op="get_attr")
                )
                self.constants += [value for value in held if isinstance(value, Tensor)]
            return compile_fx_inner(frozen, given, **settings)

        compiled = compile_fx(graph, inputs, inner_compile=inner, config_patches=OPTIONS)
        self.graphs += 1
        return cast("Callable[..., Any]", compiled)


def compiler_refusal() -> str:
    """Return why nothing can be compiled here, or an empty string where a C++ compiler is found."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return f"torch.compile finds no C++ compiler: {_INSTALL}"
    return ""


def _try_compiler() -> None:
    """Compile something small: it shows whether that works, and pays what the first compile costs alone."""
    if refusal := compiler_refusal():  # what is in inductor's cache would run without one
        raise RuntimeRefusedError(refusal)
    forward = _CompiledForward(torch.nn.functional.silu, set())
    try:
        forward(torch.ones(3, 5))
    except RuntimeRefusedError:
        raise
    except CandidateError as error:  # such as what inductor makes of a compiler that says nothing of itself
        raise RuntimeRefusedError(f"{error}; {_INSTALL}") from error
    except Exception as error:  # such as a cache folder that cannot be written
        raise RuntimeRefusedError(f"torch.compile does not work here: {one_line(error)}") from error
    finally:
        torch._dynamo.reset()


def _failure(error: TorchDynamoException) -> CandidateError:
    """Return what a failed compile says, and what to do where it is the C++ compiler's."""
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    inner = getattr(error, "inner_exception", error)
    if isinstance(inner, InvalidCxxCompiler):
        return RuntimeRefusedError(f"torch.compile finds no C++ compiler: {_INSTALL}")
    if isinstance(inner, CppCompileError):
        said = next((line for line in str(inner).splitlines() if "error" in line.lower()), str(inner))
        return RuntimeRefusedError(f"torch.compile's C++ compiler failed ({said.strip()[:200]}): {_INSTALL}")
    return CandidateError(f"torch.compile failed: {one_line(inner)}")


def _graph_breaks() -> Mapping[str, int]:
    """Return dynamo's counts of graph breaks by reason."""
    return dict(torch._dynamo.utils.counters["graph_break"])


def _tensors(value: Any) -> Iterator[Tensor]:
    """Return the tensors in arguments. Unlike `pytree` it takes next to no time for a call's few tensors."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "__dict__"):  # a key-value cache
        with contextlib.suppress(RuntimeRefusedError):
            yield from flatten(value)[1]


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shapes:
    return tuple(tensor.shape for tensor in _tensors((args, kwargs)))


def _usual(value: Any, *, views: bool) -> Any:
    """Return a copy of a tensor that would be compiled for anew: of inference mode, or (`views`) a view."""
    odd = isinstance(value, Tensor) and (value.is_inference() or (views and value._is_view()))
    return value.clone() if odd else value
