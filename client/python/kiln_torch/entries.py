"""Calls of a compiled function, from the user's to Dynamo's frame, in C.

What torch.compile returns of a function is a wrapper, in which Python sets some twenty switches around
each call: a third of what a small graph's call takes. Then Dynamo looks for the callback's backend, to
compare it with that of the code it has: through four objects, by two names of attributes each. For
functions that are compiled for Kiln a _kiln.Entry does the same, switch by switch, and a _kiln.Callback
knows its backend. torch's own wrapper is called where anything is not as in almost every call: a stance,
an export or a trace, a compile that is under way. Settings that torch.compile's `dynamic` changes for a
call are changed for the compiles in it, which read them.

Whether a wrapper is such is read from what torch has made; one that is not, or of a torch that the tests
have not seen, stays as it is.
"""

from __future__ import annotations

import functools
import inspect
import logging
import types
from collections.abc import Callable
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import torch
from torch._dynamo import eval_frame
from torch._dynamo.exc import TorchDynamoException

from kiln_torch import _kiln

_LOG = logging.getLogger("kiln_torch")
# Of torch's wrapper: the names that it reads, as the tests have seen them.
_READ_IN_EACH = frozenset(
    """
    RuntimeError ShortenTraceback TracingContext UncapturedHigherOrderOpError Unsupported _C __cause__
    _callback_from_stance _functorch _get_error_on_graph_break _guards _in_hop_compile
    _is_skip_guard_eval_unsafe_stance _maybe_set_eval_frame _set_error_on_graph_break compiler config
    enter_exit_hooks error_on_graph_break error_on_nested_fx_trace fake_mode
    force_compile_during_fx_trace fullgraph get_dynamic_layer_stack_depth in_kernel_invocation
    is_exporting pop_dynamic_layer_stack_and_undo_to_depth remove_dynamo_frames set_eval_frame
    set_skip_guard_eval_unsafe torch torch._higher_order_ops.utils try_get verbose with_traceback
    """.split()
)
_READ = {
    "2.11.": _READ_IN_EACH | {"_get_eval_frame_override", "set_eval_frame_override"},
    "2.13.": _READ_IN_EACH
    | frozenset(
        """
        UserError _ForceDispatchKeyGuard _dispatch_tls_local_exclude_set
        _dispatch_tls_local_include_set _dynamo _isolate_recompiles_id _stance dynamo_tls
        error_on_dynamo_callback_in_fullgraph_compiled_code export get_skip_reasons join
        reset_skip_reasons set_eval_frame_isolate_recompiles_id set_fullgraph_compiled_frame_count
        set_fullgraph_error_on_nested_compile skip_reasons stance
        """.split()
    ),
}
_CLOSURE = ("callback", "fn", "is_fx_symbolic_tracing", "is_jit_tracing", "self")


def _inner(function: Callable[..., Any], name: str) -> CodeType:
    """The code of the function `name` that `function` defines."""
    (code,) = (c for c in function.__code__.co_consts if inspect.iscode(c) and c.co_name == name)
    return code


def _shell(entry: _kiln.Entry) -> Callable[..., Any]:
    def compile_wrapper(*args: Any, **kwargs: Any) -> Any:
        return entry(*args, **kwargs)

    return compile_wrapper


class _Torch:
    """What this torch's wrappers are made of. Raises where that is not as it is known to be."""

    def __init__(self, wrap: Callable[..., Any]) -> None:
        known = next((n for n in _READ if torch.__version__.startswith(n)), None)
        if known is None:
            raise RuntimeError(f"they are known for {', '.join(f'{n}x' for n in _READ)}")
        self.wrapper = _inner(wrap, "compile_wrapper")
        if set(self.wrapper.co_names) != _READ[known] or self.wrapper.co_freevars != _CLOSURE:
            raise RuntimeError("torch.compile's wrapper is another")
        if eval_frame._maybe_set_eval_frame is not eval_frame.set_eval_frame:
            raise RuntimeError("a switch of torch's can turn Dynamo off")
        # What Dynamo skips where it meets torch's wrapper, it skips where it meets this.
        self.shell = _inner(_shell, "compile_wrapper").replace(
            co_filename=self.wrapper.co_filename, co_firstlineno=self.wrapper.co_firstlineno
        )
        self.hooks = {
            _inner(eval_frame._TorchDynamoContext.__init__, "call_on_enter"),
            _inner(type(torch._dynamo.config)._make_closure_patcher, "change"),
        }
        core = torch._C
        isolates = "set_eval_frame_isolate_recompiles_id" in _READ[known]
        self.isolate = eval_frame.set_eval_frame_isolate_recompiles_id if isolates else None
        self._around = {
            "local": torch._guards._TLS,
            "name": "tracing_context",
            "is_tracing": core._is_tracing,
            "depth": core._functorch.get_dynamic_layer_stack_depth,
            "pop": core._functorch.pop_dynamic_layer_stack_and_undo_to_depth,
            "keys": (
                core._dispatch_tls_local_include_set,
                core._dispatch_tls_local_exclude_set,
                core._ForceDispatchKeyGuard,
            )
            if "_ForceDispatchKeyGuard" in _READ[known]
            else None,
            "error": TorchDynamoException,
        }
        self.around()

    def around(self) -> SimpleNamespace:
        """For a _kiln.Entry. Raises KeyError where torch has none of the flags."""
        stance = eval_frame._stance
        flags = (
            (vars(torch.compiler), "_is_exporting_flag", False),
            (vars(torch.fx._symbolic_trace), "_is_fx_tracing_flag", False),
            (vars(eval_frame), "_stance", stance),
        )
        for variables, name, _ in flags:
            variables[name]
        return SimpleNamespace(flags=flags, **self._around)


def _raises_as(wrapper: FunctionType) -> Callable[[BaseException], None]:
    """A function that raises an error as torch's wrapper does one of the function that it wraps."""

    def raise_as_torch(error: BaseException) -> None:
        def fn(*args: Any, **kwargs: Any) -> Any:
            raise error

        cells = tuple(
            types.CellType({"callback": None, "fn": fn}.get(name, cell.cell_contents))
            for name, cell in zip(_CLOSURE, wrapper.__closure__ or (), strict=True)
        )
        FunctionType(wrapper.__code__, wrapper.__globals__, wrapper.__name__, None, cells)()

    return raise_as_torch


def _shortened(context: Any, wrapper: FunctionType, known: _Torch) -> FunctionType:
    """`wrapper`, which torch has made in `context`, or one that does the same in C."""
    cells = zip(_CLOSURE, wrapper.__closure__ or (), strict=True)
    around = {name: cell.cell_contents for name, cell in cells}
    is_plain = (
        type(context) is eval_frame.OptimizeContext
        and around["self"] is context
        and around["is_jit_tracing"] is torch._C._is_tracing
        and around["callback"] is context.callback
        and not context.fullgraph
        and context.error_on_graph_break is None
        and eval_frame._stance == eval_frame.DynamoStance()
        and all(hook.__code__ in known.hooks for hook in context.enter_exit_hooks)
    )
    if not is_plain:
        return wrapper
    callback = _kiln.Callback(
        context.callback,
        eval_frame.innermost_backend(context.callback),
        tuple(context.enter_exit_hooks),
    )
    swaps = [(eval_frame.set_skip_guard_eval_unsafe, False)]
    if known.isolate is not None:
        swaps.append((known.isolate, context._isolate_recompiles_id))
    # Last, and its end first: no other Python code is to be run under it.
    swaps.append((eval_frame.set_eval_frame, callback))
    entry = _kiln.Entry(
        around["fn"], wrapper, _raises_as(wrapper), tuple(swaps), known.around()
    )
    cell = types.CellType(entry)
    shell = FunctionType(known.shell, wrapper.__globals__, wrapper.__name__, None, (cell,))
    functools.update_wrapper(shell, wrapper)
    vars(shell).update(vars(wrapper))  # what it wraps is what torch's wraps
    shell._torchdynamo_wrapper_id = id(shell)
    return shell


def install(is_ours: Callable[[Any], bool]) -> None:
    """Has torch.compile return such functions, for backends that are ours, from now on."""
    wrap = eval_frame._TorchDynamoContext.__call__
    try:
        known = _Torch(wrap)
    except Exception as error:
        _LOG.info("torch %s: calls go through torch.compile's wrapper: %s", torch.__version__, error)
        return

    @functools.wraps(wrap)
    def wrap_shortened(self: Any, function: Any) -> Any:
        made = wrap(self, function)
        try:
            if getattr(made, "__code__", None) is not known.wrapper:
                return made
            backend = eval_frame.innermost_backend(self.callback)
            return _shortened(self, made, known) if is_ours(backend) else made
        except Exception as error:
            _LOG.info("a function's calls go through torch.compile's wrapper: %r", error)
            return made

    # Compiled autograd calls torch.compile where Dynamo looks on, which leaves torch's own function alone.
    eval_frame.skip_code(wrap_shortened.__code__)
    eval_frame._TorchDynamoContext.__call__ = wrap_shortened
