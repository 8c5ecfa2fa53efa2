"""No full garbage collection while Dynamo compiles a function for Kiln.

A trace makes so many objects that Python looks through all that the process has, torch's own and the
user's with them, in the middle of it: a fifth of a second of a first call, which frees next to nothing.
Young objects are collected as ever meanwhile; a full collection comes when it is due after the compile.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import convert_frame
from torch._dynamo.callback import CallbackArgs, callback_handler
from torch._dynamo.eval_frame import innermost_backend

_NEVER = 1 << 30  # generations that are collected before a full collection is due
_COMPILE = getattr(getattr(convert_frame, "_compile", None), "__code__", None)
_NEAREST = 24  # frames between Dynamo's callback and what calls it


class Pause:
    """Of full collections, from a compile's start to its end. Dynamo compiles one function at a time,
    and calls both for the outermost where compiles nest."""

    def __init__(self, is_ours: Callable[[Any], bool]) -> None:
        self._is_ours = is_ours
        self._before: tuple[int, int, int] | None = None

    def start(self, _: CallbackArgs) -> None:
        if gc.isenabled() and self._is_ours(_backend()):
            self._before = gc.get_threshold()
            gc.set_threshold(*self._before[:2], _NEVER)

    def end(self, _: CallbackArgs) -> None:
        before, self._before = self._before, None
        if before is not None and gc.get_threshold() == (*before[:2], _NEVER):
            gc.set_threshold(*before)  # where nobody has set others meanwhile

    def install(self) -> None:
        if self.start not in callback_handler.start_callbacks:  # torch._dynamo.reset() forgets them
            callback_handler.register_start_callback(self.start)
            callback_handler.register_end_callback(self.end)


def _backend() -> Any:
    """Of the compile that starts; None where Dynamo is not as it is known to be."""
    frame = sys._getframe(2)
    for _ in range(_NEAREST):
        if frame is None:
            break
        if frame.f_code is _COMPILE:
            backend = innermost_backend(frame.f_locals.get("compiler_fn"))
            return getattr(backend, "compiler_fn", backend)
        frame = frame.f_back
    return None
