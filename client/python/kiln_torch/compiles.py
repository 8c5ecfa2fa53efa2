"""What holds while Dynamo compiles a function for Kiln, and for no other backend."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch._dynamo import convert_frame
from torch._dynamo.callback import CallbackArgs, callback_handler
from torch._dynamo.eval_frame import innermost_backend

_COMPILE = getattr(getattr(convert_frame, "_compile", None), "__code__", None)
_NEAREST = 24  # frames between Dynamo's callback and what calls it


class Part(Protocol):
    def start(self) -> None: ...

    def end(self) -> None: ...


class Compiles:
    """Starts and ends `parts` with each compile whose backend `is_ours`. Dynamo compiles one function
    at a time, and calls both for the outermost where compiles nest."""

    def __init__(self, is_ours: Callable[[Any], bool], parts: Sequence[Part]) -> None:
        self._is_ours = is_ours
        self._parts = parts
        self._started: list[Part] = []

    def start(self, _: CallbackArgs) -> None:
        if self._is_ours(_backend()):
            for part in self._parts:
                part.start()
                self._started.append(part)

    def end(self, _: CallbackArgs) -> None:
        while self._started:
            self._started.pop().end()

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
