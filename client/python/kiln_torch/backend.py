"""The torch.compile backend "kiln": capture, fetch or compile on the server, run here."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

from kiln_torch import _kiln
from kiln_torch.capture import CaptureError
from kiln_torch.check import Checked
from kiln_torch.decompositions import decompositions
from kiln_torch.devices import traced_device
from kiln_torch.graphs import Deferred, capture_graph, next_name, ready_to_run, static_inputs
from kiln_torch.kernels import exchanged
from kiln_torch.margins import margin_losses_as_atens
from kiln_torch.names import Names, module_names, name_inputs
from kiln_torch.overlaps import guard_overlaps
from kiln_torch.pregraph import without_region
from kiln_torch.program import load_program
from kiln_torch.recompute import partitioner
from kiln_torch.resampling import resampling_kept_whole
from kiln_torch.runner import Eager, Run, fall_back, runner
from kiln_torch.scan_steps import separate_scan_results
from kiln_torch.segments import Parted, can_be_parted
from kiln_torch.settings import Settings, as_options
from kiln_torch.shortcuts import shortened
from kiln_torch.tangents import contiguous_tangents

_LOG = logging.getLogger("kiln_torch")
# Whose private interfaces stored.py follows.
_TORCH_WITH_KNOWN_CACHES = ("2.13.",)


@functools.cache
def torch_caches() -> ModuleType | None:
    """The part that keeps graphs in torch's caches, where this torch is one that it knows."""
    if torch.__version__.startswith(_TORCH_WITH_KNOWN_CACHES):
        try:
            from kiln_torch import stored

            return stored
        except ImportError as error:
            reason = str(error)
    else:
        reason = f"it is known for {', '.join(v + 'x' for v in _TORCH_WITH_KNOWN_CACHES)}"
    _LOG.warning(
        "torch %s: compiled graphs are not kept for other processes: %s", torch.__version__, reason
    )
    return None


def has_eager_random(settings: Settings) -> bool:
    return settings.fallback_random or settings.check  # which compares with eager's numbers


def _compile(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    settings: Settings,
    kind: str,
) -> Run:
    """Compiles one graph after AOTAutograd; returns a function that takes a list and empties it."""
    return _compile_part(module, settings, kind, static_inputs(kind))


def _compile_part(
    module: torch.fx.GraphModule, settings: Settings, kind: str, parameters: frozenset[int]
) -> Run:
    """`module` with the inputs `parameters`: one program, or several with torch's Python in between."""
    if can_be_parted(module, has_eager_random(settings)):
        return _in_parts(module, settings, kind, parameters)
    name, eager = next_name(kind), Eager(module)
    try:
        graph = capture_graph(module, kind, name, has_eager_random(settings), parameters)
    except CaptureError as error:
        if can_be_parted(module, has_eager_random(settings), is_refused=True):
            return _in_parts(module, settings, kind, parameters)
        return fall_back(eager, name, str(error), settings)

    def checked(run: Run, program: _kiln.Program) -> Run:
        return _checked(run, program, module, name, graph.text, settings)

    return ready_to_run(graph, name, eager, settings, checked if settings.check else None)


def _in_parts(
    module: torch.fx.GraphModule, settings: Settings, kind: str, parameters: frozenset[int]
) -> Parted:
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    kept = {placeholders[i] for i in parameters}

    def compile_part(part: torch.fx.GraphModule, inputs: Sequence[torch.fx.Node]) -> Run:
        among = frozenset(i for i, node in enumerate(inputs) if node in kept)
        return _compile_part(part, settings, kind, among)

    return Parted(module, compile_part)


def _compile_to_keep(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    settings: Settings,
    options: Mapping[str, Any],
    kind: str,
) -> Any:
    """As _compile, for torch's caches. AOTAutograd asks for the backward graph with the forward one,
    so that is only captured; its program comes in its first call."""
    name, eager = next_name(kind), Eager(module)

    def in_parts() -> Any:
        if kind == "backward":
            torch_caches().allow_second_runs()
        run = _in_parts(module, settings, kind, static_inputs(kind))
        return torch_caches().StoredGraph(None, eager, run, settings, options)

    if can_be_parted(module, has_eager_random(settings)):
        return in_parts()
    try:
        graph = capture_graph(module, kind, name, has_eager_random(settings))
        make = functools.partial(ready_to_run, graph, name, eager, settings)
    except CaptureError as error:
        if can_be_parted(module, has_eager_random(settings), is_refused=True):
            return in_parts()
        graph = None
        make = functools.partial(fall_back, eager, name, str(error), settings)
    if kind == "backward":
        run = Deferred(make)
        torch_caches().allow_second_runs()
    else:
        run = make()
    return torch_caches().StoredGraph(graph, eager, run, settings, options)


def _checked(
    run: Run,
    program: _kiln.Program,
    module: torch.fx.GraphModule,
    name: str,
    graph: str,
    settings: Settings,
) -> Checked:
    def compile_part(part: torch.fx.GraphModule) -> Run:
        graph = capture_graph(part, "forward", f"{name}_part", has_eager_random(settings))
        program = load_program(graph.text, settings, graph.convention.device)
        return runner(program, graph, Eager(part), name, settings)

    library_ops = program.info()["library_ops"]
    return Checked(run, module, name, graph, compile_part, library_ops, settings.debug_dir)


def aot_backend(
    compile_graph: Callable[..., Run],
    eager_random: bool = False,
    as_compiler: Callable[[Callable[..., Run]], Callable[..., Run]] = lambda compiler: compiler,
    known_names: Mapping[int, Sequence[str]] | None = None,
) -> Callable[..., Callable[..., Any]]:
    """A torch.compile backend that hands every graph to compile_graph(module, inputs, kind=...).

    `kind` is "forward", "backward" or "inference". What is captured follows from the settings here,
    so everything that captures goes through it. AOTAutograd is given as_compiler of that function.
    Inputs are named as module_names does it with `known_names`.
    """

    def compiler(kind: str, names: Names) -> Callable[..., Run]:
        def compile_named(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Run:
            name_inputs(graph, names)
            return compile_graph(graph, example_inputs, kind=kind)

        return as_compiler(compile_named)

    def trace(device_type: str, names: Names) -> Callable[..., Any]:
        return aot_autograd(
            fw_compiler=compiler("forward", names),
            bw_compiler=compiler("backward", names),
            inference_compiler=compiler("inference", names),
            decompositions=decompositions(device_type),
            partition_fn=partitioner(keep_random=eager_random),
            keep_inference_input_mutations=True,
        )

    def backend(module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        kernels = resampling_kept_whole() | margin_losses_as_atens()
        with exchanged(kernels), contiguous_tangents(), separate_scan_results():
            device = traced_device(module, example_inputs)
            names = module_names(module, known_names)
            return trace(device.type, names)(module, example_inputs)

    return backend


def kiln_backend(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Backend for torch.compile, found through the entry point group torch_dynamo_backends.

    `options`: server, fallback, timeout_s, threads, arch, libraries, device, debug_dir, mode, check,
    fallback_random, fail_on_miss, prepare_memory, record_runtime_overhead, local_cache, tenant, priority and those of
    security; see Settings.
    Raises ValueError for an unknown option or mode, and for a value that can be of no use.

    With `mode` "progressive", here or among the options, calls run eager until the program has
    arrived, then natively: nobody waits for a compile. With "reduce-overhead" inference graphs of
    fixed sizes on a GPU are replayed as one CUDA graph. With "max-autotune" first runs time schedules
    that the compiler takes for about as good, and the server keeps which was the fastest. TorchInductor's
    other modes have no effect.
    """
    options = as_options(mode, options)
    settings = Settings.read(options)
    traced = _traced(module, example_inputs, settings, options)
    graph = guard_overlaps(module, example_inputs, shortened(traced), settings)
    return graph if settings.record_runtime_overhead else without_region(graph)


def _traced(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    settings: Settings,
    options: Mapping[str, Any],
) -> Callable[..., Any]:
    """What AOTAutograd makes of Dynamo's graph, from torch's caches where they have it."""
    eager_random = has_eager_random(settings)
    caches = torch_caches()
    if caches is None or not caches.can_keep(module, example_inputs, settings):
        compile_graph = functools.partial(_compile, settings=settings)
        return aot_backend(compile_graph, eager_random)(module, example_inputs)
    compile_graph = functools.partial(_compile_to_keep, settings=settings, options=options)
    with caches.kept(module, example_inputs, settings):
        backend = aot_backend(compile_graph, eager_random, caches.keeper)
        return backend(module, example_inputs)
