"""No full garbage collection while Dynamo compiles a function for Kiln.

A trace makes so many objects that Python looks through all that the process has, torch's own and the
user's with them, in the middle of it: a fifth of a second of a first call, which frees next to nothing.
Young objects are collected as ever meanwhile; a full collection comes when it is due after the compile.
"""

from __future__ import annotations

import gc

_NEVER = 1 << 30  # generations that are collected before a full collection is due


class Pause:
    """Of full collections, from a compile's start to its end."""

    def __init__(self) -> None:
        self._before: tuple[int, int, int] | None = None

    def start(self) -> None:
        if gc.isenabled():
            self._before = gc.get_threshold()
            gc.set_threshold(*self._before[:2], _NEVER)

    def end(self) -> None:
        before, self._before = self._before, None
        if before is not None and gc.get_threshold() == (*before[:2], _NEVER):
            gc.set_threshold(*before)  # where nobody has set others meanwhile
