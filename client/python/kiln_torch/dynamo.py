"""Small functions of Dynamo's that find the same with less work, while it compiles for Kiln.

Of a trace of BERT-base a tenth went into what nobody looks at or what was the same a moment ago: names of
functions for a log that is off, by splitting whole source files into tokens; a flush of the processor's
caches so that one run of the guards is timed; the import of DTensor's context parallelism to see that a
function is not one of its own; a stack's text anew for every node. Results are torch's own: what is
remembered is what torch's function gave, for the compile at hand, and what is left out had no reader.
One more is here because torch's own fails after precompile has loaded something.

These are private functions. In a torch that the tests have not seen they stay as they are.
"""

from __future__ import annotations

import functools
import logging
import sys
import time
import traceback
from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import torch
from torch._dynamo import guards, output_graph, symbolic_convert
from torch._guards import TracingContext

_LOG = logging.getLogger("kiln_torch")
_KNOWN_TORCH = ("2.13.",)
_LOCAL_MAP = "torch.distributed.tensor.experimental._func_map"
_PLACE = attrgetter(
    *("filename", "lineno", "name"),
    *(("end_lineno", "colno", "end_colno") if sys.version_info >= (3, 11) else ()),
)

# An object, a name, and what is to be there in place of what is.
Replacement = tuple[Any, str, Any]


def _local_map() -> Replacement:
    from torch._dynamo.variables.higher_order_ops import LocalMapWrappedHigherOrderVariable as owner

    original = vars(owner)["should_wrap_in_hop"].__func__

    @functools.wraps(original)
    def should_wrap_in_hop(cls: type, value: Any) -> bool:
        # Nothing is the one object of a module that is not there.
        return _LOCAL_MAP in sys.modules and original(cls, value)

    return owner, "should_wrap_in_hop", classmethod(should_wrap_in_hop)


def _guards_time() -> Replacement:
    from torch._logging._internal import trace_log

    original = guards.profile_guard_manager

    @functools.wraps(original)
    def profile_guard_manager(root: Any, scope: Any, runs: int) -> float:
        if guards.guards_log.isEnabledFor(logging.DEBUG) or trace_log.handlers:
            return original(root, scope, runs)
        begin = time.perf_counter()
        root.check(scope)
        return (time.perf_counter() - begin) * 1e6

    return guards, "profile_guard_manager", profile_guard_manager


def _header() -> Replacement:
    owner = symbolic_convert.InstructionTranslatorBase
    original = owner.get_line_of_code_header
    readers = (
        output_graph.trace_call_log,
        symbolic_convert.trace_call_log,
        symbolic_convert.trace_source_log,
    )

    @functools.wraps(original)
    def get_line_of_code_header(self: Any, lineno: int | None = None) -> str:
        if any(reader.isEnabledFor(logging.DEBUG) for reader in readers):
            return original(self, lineno)
        return ""

    return owner, "get_line_of_code_header", get_line_of_code_header


def _stack_texts() -> Replacement:
    known: dict[Any, str] = {}

    class Frames(traceback.StackSummary):
        """A stack whose frames' texts are made once each."""

        @classmethod
        def from_list(cls, frames: Any) -> Frames:
            return cls(traceback.StackSummary.from_list(frames))

        def format_frame_summary(self, frame: traceback.FrameSummary, **how: Any) -> str:
            if frame.locals or any(how.values()):
                return super().format_frame_summary(frame, **how)
            place = _PLACE(frame)
            text = known.get(place)
            if text is None:
                text = known[place] = super().format_frame_summary(frame, **how)
            return text

    return output_graph, "traceback", SimpleNamespace(**{**vars(traceback), "StackSummary": Frames})


def _remembered(function: Callable[[Any], Any], place: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A method that calls `function` once for each `place` of its object."""
    known: dict[Any, Any] = {}

    @functools.wraps(function)
    def method(self: Any) -> Any:
        at = place(self)
        found = known.get(at)
        if found is None:
            found = known[at] = function(self)
        return found

    return method


def _frame_at_hand() -> Replacement:
    name = "_populate_loc_in_frame_summary"
    place = attrgetter("loc_in_frame", "loc_in_frame_positions")
    return TracingContext, name, _remembered(getattr(TracingContext, name), place)


def _module_frames() -> Replacement:
    owner, name = symbolic_convert.InstructionTranslatorBase, "is_co_filename_from_nn_modules"
    return owner, name, _remembered(getattr(owner, name), attrgetter("f_code.co_filename"))


def _short_names() -> Replacement:
    from torch.utils import _traceback

    return _traceback, "shorten_filename", functools.cache(_traceback.shorten_filename)


def _settings() -> Replacement:
    from torch.utils._config_module import _UNSET_SENTINEL as unset

    owner = type(torch._dynamo.config)
    original = owner.__getattr__
    plain = (bool, int, float, str, type(None))

    @functools.wraps(original)
    def __getattr__(self: Any, name: str) -> Any:
        entry = self._config.get(name)
        if (
            entry is None
            or entry.hide
            or entry.deprecated
            or entry.alias is not None
            or entry.env_value_force is not unset
        ):
            return original(self, name)
        given = entry.user_override.get()
        if given is not unset:
            return given
        default = entry.default
        if (
            type(default) in plain
            and entry.justknob is None
            and entry.env_value_default is unset
        ):
            return default
        return original(self, name)

    return owner, "__getattr__", __getattr__


def _free_names() -> Replacement:
    """torch counts names of globals from 0 in every process. What precompile has loaded into a module
    may have the next one, of another process, and then no function of that module could be compiled
    any more, nor one that was loaded for another shape."""
    owner = output_graph.OutputGraph
    original = owner.install_global

    @functools.wraps(original)
    def install_global(self: Any, prefix: str, value: Any) -> str:
        name = output_graph.unique_id(prefix)
        while name in self.global_scope:
            name = output_graph.unique_id(prefix)
        self.install_global_unsafe(name, value)
        return name

    return owner, "install_global", install_global


_PIECES: tuple[Callable[[], Replacement], ...] = (
    _local_map,
    _guards_time,
    _header,
    _stack_texts,
    _frame_at_hand,
    _module_frames,
    _short_names,
    _settings,
    _free_names,
)
_ABSENT = object()


@functools.cache
def _pieces() -> tuple[Callable[[], Replacement], ...]:
    """Those that this torch has as they are known to be."""
    try:
        if not torch.__version__.startswith(_KNOWN_TORCH):
            raise RuntimeError(f"known are {', '.join(f'{version}x' for version in _KNOWN_TORCH)}")
        for piece in _PIECES:
            piece()
        return _PIECES
    except Exception as error:
        _LOG.info("torch %s: Dynamo traces as it does for others: %r", torch.__version__, error)
        return ()


class Lighter:
    """Those functions in Dynamo's place, from a compile's start to its end."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def start(self) -> None:
        for piece in _pieces():
            owner, name, value = piece()
            before = vars(owner).get(name, _ABSENT)
            setattr(owner, name, value)
            self._replaced.append((owner, name, before, value))

    def end(self) -> None:
        while self._replaced:
            owner, name, before, value = self._replaced.pop()
            if vars(owner).get(name, _ABSENT) is not value:
                continue  # somebody else's by now
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
