"""The steps of a program as regions of torch.profiler: kernels, library steps, copies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch.autograd import profiler

from kiln_torch import _kiln

Run = Callable[[list[Any]], Any]
_KINDS = {1: "kernel", 2: "library step", 3: "copy"}  # kiln_step_kind


def _name(kind: int, name: str, nodes: str) -> str:
    what = _KINDS.get(kind, "step")
    return f"kiln {what} {name}" + (f" ({nodes})" if nodes else "")


class Regions:
    """Runs of one program while torch's profiler records. Thread-safe."""

    def __init__(self, program: _kiln.Program, run: Run) -> None:
        self._program = program
        self._run = run
        self._names = [_name(*step) for step in program.steps()]
        self._open = threading.local()  # regions that have begun, of each thread

    def __call__(self, inputs: list[Any]) -> Any:
        self._open.regions = []
        self._program.set_observer(self._step)
        try:
            return self._run(inputs)
        finally:
            self._program.set_observer(None)
            while self._open.regions:  # of a step that failed
                self._open.regions.pop().__exit__(None, None, None)

    def _step(self, step: int, begins: int) -> None:
        regions = getattr(self._open, "regions", None)
        if regions is None:
            return  # a run of another thread, which began before the profiler
        if begins:
            region = profiler.record_function(self._names[step])
            region.__enter__()
            regions.append(region)
        elif regions:
            regions.pop().__exit__(None, None, None)
