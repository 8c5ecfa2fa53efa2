"""mode="reduce-overhead": a graph's runs on a GPU, recorded once and replayed as one CUDA graph.

A replay reads and writes the addresses that were recorded. Parameters and buffers stay where they
are, and are looked up in each call; every other input is copied to a place of its own before, and
what a caller may keep is copied from there after: an updated input, and all outputs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kiln_torch.reference import copies

_WARM_UPS = 2  # runs before the recording: libraries choose and allocate in the first
_MOST_RECORDINGS = 4  # of different parameters; then calls run as they come

_AS_IT_IS = contextlib.nullcontext()

Run = Callable[[list[Any]], Any]


class _NotReplayable(Exception):
    pass


def _storage(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _place_for(value: torch.Tensor) -> torch.Tensor:
    """Memory for what lies as `value` does."""
    place = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    if torch._debug_has_internal_overlap(place) != 0:
        raise _NotReplayable
    return place


def _are_apart(outputs: Sequence[Any]) -> bool:
    """Whether a clone of each tensor is what copies() gives: no two share storage, and each fills its
    own from the begin, in whatever order of dimensions."""
    tensors = [value for value in outputs if isinstance(value, torch.Tensor)]
    storages = {value.untyped_storage()._cdata for value in tensors}
    return len(storages) == len(tensors) and all(
        value.storage_offset() == 0 and torch.empty_like(value).stride() == value.stride()
        for value in tensors
    )


@dataclass
class _Recording:
    """One CUDA graph, the inputs that it reads, and what the run that was recorded has given."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Any]
    outputs: list[Any]
    given: dict[int, int]  # input by output: those that are an input itself
    copied: Sequence[int]  # inputs with a place of their own
    are_apart: bool  # each of the other outputs has its memory for itself, and fills it

    def replay(self, inputs: list[Any], updated: Sequence[int]) -> list[Any]:
        if self.copied:
            places = [self.inputs[i] for i in self.copied]
            torch._foreach_copy_(places, [inputs[i] for i in self.copied])
        self.graph.replay()
        made = [None if i in self.given else value for i, value in enumerate(self.outputs)]
        if self.are_apart:
            outputs = [v.clone() if isinstance(v, torch.Tensor) else v for v in made]
        else:
            outputs = copies(made)
        for i, number in self.given.items():
            outputs[i] = inputs[number]
        for i in updated:
            inputs[i].copy_(self.inputs[i])
        return outputs


class Replayed:
    """`run` of a program on a GPU, by replays from its third call on. Thread-safe.

    `fixed` are the positions of inputs that keep their memory from call to call, `updated` of those
    that a run writes, and `check` raises what a kernel of an earlier run has found. Calls that cannot
    be recorded, and those inside of a caller's own recording, run as they come.
    """

    def __init__(
        self, run: Run, fixed: Collection[int], updated: Sequence[int], check: Callable[[], None]
    ) -> None:
        self._run = run
        self._fixed = frozenset(fixed)
        self._updated = [i for i in updated if i not in self._fixed]
        self._check = check
        self._calls = 0
        self._recordings: dict[tuple[int, ...], _Recording] | None = {}
        self._lock = threading.Lock()
        self._stream: torch.cuda.Stream | None = None  # of the last replay
        self._done = torch.cuda.Event()

    def __del__(self) -> None:
        self._recordings = None  # before the program that they were recorded of

    def __call__(self, inputs: list[Any]) -> Any:
        if self._recordings is None or torch.cuda.is_current_stream_capturing():
            return self._run(inputs)
        self._calls += 1
        if self._calls <= _WARM_UPS:
            return self._run(inputs)
        # An inference graph's caller has mostly seen to that already.
        without_grad = torch.no_grad() if torch.is_grad_enabled() else _AS_IT_IS
        with self._lock, without_grad:
            recording = self._recording_of(inputs)
            if recording is not None:
                return self._replay(recording, inputs)
        return self._run(inputs)

    def _replay(self, recording: _Recording, inputs: list[Any]) -> list[Any]:
        stream = torch.cuda.current_stream()
        if self._stream is not None and self._stream != stream:
            stream.wait_event(self._done)
        outputs = recording.replay(inputs, self._updated)
        self._done.record(stream)
        self._stream = stream
        self._check()
        return outputs

    def _recording_of(self, inputs: list[Any]) -> _Recording | None:
        """Of these inputs' fixed addresses; None where there can be none."""
        if self._recordings is None:
            return None
        addresses = tuple(inputs[i].data_ptr() for i in self._fixed)
        found = self._recordings.get(addresses)
        if found is None and len(self._recordings) < _MOST_RECORDINGS:
            try:
                found = self._recordings[addresses] = self._record(inputs)
            except Exception:  # whatever an operator raises that waits for the GPU
                self._recordings = None
        return found

    def _record(self, inputs: list[Any]) -> _Recording:
        places = [
            value if i in self._fixed else _place_for(value) for i, value in enumerate(inputs)
        ]
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on with what a recording of theirs would not allow.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = list(self._run(list(places)))
        given = {
            i: next(n for n, place in enumerate(places) if place is value)
            for i, value in enumerate(outputs)
            if any(place is value for place in places)
        }
        lent = {_storage(place) for place in places}
        others = [o for i, o in enumerate(outputs) if i not in given]
        if any(isinstance(o, torch.Tensor) and _storage(o) in lent for o in others):
            raise _NotReplayable  # a view of an input
        copied = [i for i in range(len(inputs)) if i not in self._fixed]
        return _Recording(graph, places, outputs, given, copied, _are_apart(others))
