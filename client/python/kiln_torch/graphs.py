"""One graph from its capture to the function that runs it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._guards import CompileContext, TracingContext

from kiln_torch import _kiln
from kiln_torch.capture import capture
from kiln_torch.channels_last import channels_last
from kiln_torch.devices import graph_device
from kiln_torch.program import client_of, load_program
from kiln_torch.progressive import Progressive, Retried
from kiln_torch.runner import CapturedGraph, Convention, Eager, Run, fall_back, runner
from kiln_torch.settings import Settings
from kiln_torch.statistics import STATISTICS
from kiln_torch.tracing import current_traceparent

_graph_numbers = itertools.count()


def next_name(kind: str) -> str:
    return f"graph_{next(_graph_numbers)}_{kind}"


def static_inputs(kind: str) -> frozenset[int]:
    """Numbers of the graph's inputs that are parameters or buffers: none for a backward graph."""
    if kind == "backward":
        return frozenset()
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return frozenset(metadata.static_input_indices or ()) if metadata is not None else frozenset()


def capture_graph(
    module: torch.fx.GraphModule,
    kind: str,
    name: str,
    eager_random: bool,
    parameters: frozenset[int] | None = None,
) -> CapturedGraph:
    """`parameters` are those of the graph at hand where nothing else is said. Raises CaptureError."""
    begin = time.perf_counter()
    parameters = static_inputs(kind) if parameters is None else parameters
    is_ordered = kind == "inference" and graph_device(module).type == "cuda"
    text = capture(
        channels_last(module) if is_ordered else module, parameters.__contains__, name, eager_random
    )
    graph = CapturedGraph(kind, text, Convention.of(module, kind), parameters)
    STATISTICS.captured((time.perf_counter() - begin) * 1e3)
    return graph


def prepare_memory(graph: CapturedGraph, settings: Settings) -> int:
    """Bytes that the graph's program may keep of what follows from parameters alone."""
    # A step of training changes every parameter, and nobody sees without waiting for it whether what
    # lies on a GPU has been written to behind torch's back.
    keeps = graph.kind == "inference" and graph.convention.device.type != "cuda"
    return settings.prepare_memory if keeps else 0


def ready_to_run(
    graph: CapturedGraph,
    name: str,
    eager: Eager,
    settings: Settings,
    checked: Callable[[Run, _kiln.Program], Run] | None = None,
) -> Run:
    """Fetches or compiles the graph's program; `eager` runs where there is none, and until it has come
    in mode "progressive" or after the server was away. `checked` wraps what runs. Raises CacheMiss with fail_on_miss,
    RuntimeError with fallback="raise"."""
    device = graph.convention.device
    try:
        client_of(settings, device)  # says what is wrong with the settings
    except _kiln.Error as error:
        return fall_back(eager, name, str(error), settings)
    settings = replace(settings, prepare_memory=prepare_memory(graph, settings))
    trace = current_traceparent()

    def obtain() -> Run:
        _kiln.set_thread_trace(trace)
        program = load_program(graph.text, settings, device)
        # Of what precompile loads or another thread gets, who knows when it runs.
        if CompileContext.try_get() is not None and not torch._dynamo.config.caching_precompile:
            program.expect_run()
        STATISTICS.loaded(program)
        program.set_lazy_inputs(list(graph.convention.lazy))
        replays = settings.mode == "reduce-overhead" and graph.kind == "inference"
        fixed = graph.parameters if replays else None
        run = runner(program, graph, eager, name, settings, fixed)
        return checked(run, program) if checked is not None else run

    def give_up(error: Exception) -> Run:
        # A job that must not compile must not run slowly instead, either.
        if isinstance(error, _kiln.CacheMiss):
            raise error
        run = fall_back(eager, name, str(error), settings)
        return Retried(run, obtain) if isinstance(error, _kiln.Unavailable) else run

    if settings.mode == "progressive":
        return Progressive(eager, obtain, give_up)
    try:
        return obtain()
    except _kiln.Error as error:
        return give_up(error)


class Deferred:
    """A boxed function that `make` gives in its first call. Thread-safe."""

    def __init__(self, make: Callable[[], Run]) -> None:
        self._boxed_call = True
        self._make: Callable[[], Run] | None = make
        self._run: Run | None = None
        self._lock = threading.Lock()

    def __call__(self, inputs: list[Any]) -> Any:
        if self._run is None:
            with self._lock:
                if self._run is None:
                    self._run = self._make()
                    self._make = None
        return self._run(inputs)
