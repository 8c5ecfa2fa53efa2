"""Calls of an inference graph without what AOTAutograd and Dynamo put around it.

Of a graph that returns no views and has no effects but on inputs that its program writes itself,
AOTAutograd's wrappers disable gradients, advance version counters, make a list of the arguments and
open regions for the profiler. A _kiln.Shortcut does what of that has an effect in C, and calls the
whole for the rest: in its first call, which torch may check, while the profiler records, and where a
run fails. Whether the wrappers are such is read from what torch has made, piece by piece; anything
that is not as it is known to be leaves the whole in its place.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import torch

from kiln_torch import _kiln
from kiln_torch.runner import Run

_LOG = logging.getLogger("kiln_torch")
# Whose wrappers the tests have seen: those of the first read what a graph does in every call, those of
# the others are generated for it.
_READING, _GENERATING = ("2.11.",), ("2.13.",)
_KNOWN_TORCH = (*_READING, *_GENERATING)
_CODE = ("co_code", "co_consts", "co_names", "co_varnames", "co_freevars", "co_exceptiontable")


def _inner(function: Callable[..., Any], name: str, takes_args: bool) -> CodeType:
    """The code of the function `name` that `function` defines."""
    flag = inspect.CO_VARARGS if takes_args else 0
    (code,) = (
        code
        for code in function.__code__.co_consts
        if inspect.iscode(code)
        and code.co_name == name
        and code.co_flags & inspect.CO_VARARGS == flag
    )
    return code


def _content(function: Any) -> tuple[Any, ...]:
    return tuple(getattr(function.__code__, name) for name in _CODE)


def _around(function: Any) -> dict[str, Any]:
    """What a function has of the functions around it, but for what they have not set."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def _orchestration(wrapper: Callable[..., Any]) -> FunctionType:
    """The function that AOTAutograd has generated for one graph: all that its `wrapper` does."""
    return _around(wrapper)["_codegen_runtime_wrapper"]


@functools.cache
def _nothing_else(outputs: int, written: tuple[int, ...], autocast: bool) -> tuple[Any, ...]:
    """The content of such a function for a graph with that many outputs, none of them an alias, which
    writes to `written` itself. By the attributes of ViewAndMutationMeta."""
    from torch._functorch._aot_autograd import runtime_wrappers

    metadata = SimpleNamespace(
        mutated_inp_runtime_indices=[],
        num_mutated_inp_runtime_indices=0,
        mutated_graph_handled_indices_seen_by_autograd=list(written),
        num_outputs=outputs,
        output_info=[],
        num_outputs_aliased=0,
        num_intermediate_bases=0,
        dynamic_outputs=False,
        grad_enabled_mutation=None,
        tokens={},
    )
    wrapper = runtime_wrappers.RuntimeWrapper(
        indices_of_inps_to_detach=[], trace_joint=False, disable_amp=autocast
    ).post_compile(
        lambda args: [],
        SimpleNamespace(keep_inference_input_mutations=True),
        runtime_metadata=metadata,
    )
    return _content(_orchestration(wrapper))


class _Torch:
    """What this torch's wrappers are made of. Raises where that is not as it is known to be."""

    def __init__(self) -> None:
        if not torch.__version__.startswith(_KNOWN_TORCH):
            known = ", ".join(f"{version}x" for version in _KNOWN_TORCH)
            raise RuntimeError(f"they are known for {known}")
        from torch._functorch._aot_autograd import runtime_wrappers
        from torch._functorch.aot_autograd import aot_module_simplified

        self.forward = _inner(aot_module_simplified, "forward", True)
        self.wrapper = _inner(runtime_wrappers._create_runtime_wrapper, "runtime_wrapper", False)
        self._serializable = runtime_wrappers.SerializableCompiledFunction
        self.generates = torch.__version__.startswith(_GENERATING)
        if self.generates:
            _nothing_else(1, (), False)
        # torch keeps Dynamo out of a backend's function by a wrapper, but takes a class as it is.
        # There is nothing in a Shortcut that Dynamo could trace.
        probe = _kiln.GraphType("probe", (), {"call": "{}".format})
        self.keeps_classes = torch._dynamo.disable(probe) is probe and probe(1) == "1"

    def unwrapped(self, function: Any) -> Any:
        """Without what AOTAutogradCache has put around one that it keeps, or had kept."""
        return function.compiled_fn if type(function) is self._serializable else function


@functools.cache
def _torch() -> _Torch | None:
    try:
        return _Torch()
    except Exception as error:
        _LOG.info("torch %s: calls go through all of its wrappers: %s", torch.__version__, error)
        return None


def _run_in(whole: Callable[..., Any], known: _Torch) -> tuple[Run, Any] | None:
    """The boxed function that `whole` calls, and torch's wrapper in between; None where there is
    anything else in between."""
    forward = getattr(whole, "_torchdynamo_orig_callable", None)
    if getattr(forward, "__code__", None) is not known.forward:
        return None
    around = _around(forward)
    wrapper = known.unwrapped(around["compiled_fn"])
    if around["params_buffers_flat"] or getattr(wrapper, "__code__", None) is not known.wrapper:
        return None
    inner = "_inner_compiled_fn" if known.generates else "compiled_fn"
    return known.unwrapped(_around(wrapper)[inner]), wrapper


def _seen_by_generated(content: Any, outputs: int, written: Sequence[int]) -> tuple[int, ...] | None:
    """Which inputs' version counters the generated function advances, where that is all it does beside
    what every call needs; else None. All that the run writes, or those that autograd knows of."""
    for positions in {tuple(sorted(written)), ()}:
        for autocast in (False, True):
            if content == _nothing_else(outputs, positions, autocast):
                return positions
    return None


def _seen_by_reading(around: dict[str, Any], outputs: int) -> tuple[int, ...] | None:
    """The same of a wrapper that finds in `around` what it has to do."""
    graph = around["runtime_metadata"]
    does_more = (
        around["trace_joint"],
        around["epilogue_args_idx"],
        graph.num_mutated_inp_runtime_indices,
        graph.num_outputs != outputs,
        graph.num_outputs_aliased,
        graph.num_intermediate_bases,
        graph.dynamic_outputs,
        graph.grad_enabled_mutation is not None,
    )
    if any(does_more):
        return None
    advances = around["keep_input_mutations"]
    return tuple(graph.mutated_graph_handled_indices_seen_by_autograd) if advances else ()


def shortened(whole: Callable[..., Any]) -> Callable[..., Any]:
    """What to give Dynamo in place of `whole`, a graph compiled by AOTAutograd: `whole` itself where
    its calls do more than run a program of native steps."""
    known = _torch()
    if known is None or torch._dynamo.config.caching_precompile:
        return whole
    try:
        found = _run_in(whole, known)
        direct = getattr(found[0], "direct", None) if found is not None else None
        if direct is None:
            return whole
        program, written, index_error = direct
        if known.generates:
            content = _content(_orchestration(found[1]))
            positions = _seen_by_generated(content, program.num_outputs, written)
        else:
            positions = _seen_by_reading(_around(found[1]), program.num_outputs)
    except Exception as error:
        _LOG.info("a graph's calls go through all of torch's wrappers: %r", error)
        return whole
    if positions is None:
        return whole
    return called_by(_kiln.Shortcut(program, whole, positions, index_error), whole)


def called_by(call: Callable[..., Any], whole: Callable[..., Any]) -> Callable[..., Any]:
    """What to give Dynamo so that `call`, a type's of _kiln, runs in place of `whole` with nothing around it."""
    known = _torch()
    if known is None or not known.keeps_classes:
        return call
    # What torch looks for on such a function; not what its own wrapper said of itself.
    named = {
        name: value for name, value in vars(whole).items() if not name.startswith(("_torch", "__"))
    }
    return _kiln.GraphType("Graph", (), {**named, "call": call, "whole": staticmethod(whole)})
