"""The torch.compile backend "kiln": capture, fetch or compile on the server, run here."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

from kiln_torch import _kiln
from kiln_torch.capture import (
    CaptureError,
    capture,
    effect_token_inputs,
    lazy_inputs,
    number_inputs,
    number_outputs,
)
from kiln_torch.channels_last import channels_last
from kiln_torch.check import Checked
from kiln_torch.decompositions import decompositions
from kiln_torch.devices import (
    graph_device,
    has_input_on_gpu,
    is_replayable,
    outputs_passed_on,
    scalar_inputs,
    traced_device,
    with_current,
    with_scalars,
)
from kiln_torch.library import StepError
from kiln_torch.program import client_of, load_program
from kiln_torch.progressive import Progressive
from kiln_torch.recompute import partitioner
from kiln_torch.replay import Replayed
from kiln_torch.resampling import resampling_kept_whole
from kiln_torch.settings import MODES, Settings
from kiln_torch.statistics import STATISTICS
from kiln_torch.tracing import current_traceparent
from kiln_torch.updates import updated_inputs

_graph_numbers = itertools.count()


class RunError(RuntimeError):
    """A program failed while it ran, with fallback="raise". Its cause says how."""


def static_inputs(kind: str) -> frozenset[int]:
    """Numbers of the graph's inputs that are parameters or buffers: none for a backward graph."""
    if kind == "backward":
        return frozenset()
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return frozenset(metadata.static_input_indices or ()) if metadata is not None else frozenset()


def _has_eager_random(settings: Settings) -> bool:
    return settings.fallback_random or settings.check  # which compares with eager's numbers


def _fall_back(
    module: torch.fx.GraphModule, name: str, reason: str, settings: Settings
) -> Callable[[list[Any]], Any]:
    if settings.fallback == "raise":
        raise RuntimeError(f"kiln: {name}: {reason}")
    STATISTICS.fell_back(name, reason)
    return make_boxed_func(module.forward)


def _compile(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    settings: Settings,
    kind: str,
) -> Callable[[list[Any]], Any]:
    """Compiles one graph after AOTAutograd; returns a function that takes a list and empties it."""
    name = f"graph_{next(_graph_numbers)}_{kind}"
    parameters = static_inputs(kind)
    try:
        device = graph_device(module)
        is_ordered = kind == "inference" and device.type == "cuda"
        captured = channels_last(module) if is_ordered else module
        graph = capture(captured, parameters.__contains__, name, _has_eager_random(settings))
        client_of(settings, device)  # says what is wrong with the settings
    except (CaptureError, _kiln.Error) as error:
        return _fall_back(module, name, str(error), settings)
    # A step of training changes every parameter, and nobody sees without waiting for it whether what
    # lies on a GPU has been written to behind torch's back.
    if kind != "inference" or device.type == "cuda":
        settings = replace(settings, prepare_memory=0)
    trace = current_traceparent()

    def obtain() -> Callable[[list[Any]], Any]:
        _kiln.set_thread_trace(trace)
        program = load_program(graph, settings, device)
        STATISTICS.loaded(program)
        program.set_lazy_inputs(lazy_inputs(module, kind))
        replays = settings.mode == "reduce-overhead" and kind == "inference"
        run = _runner(program, module, name, settings, parameters if replays else None)
        return _checked(run, program, module, name, graph, settings) if settings.check else run

    def give_up(error: Exception) -> Callable[[list[Any]], Any]:
        # A job that must not compile must not run slowly instead, either.
        if isinstance(error, _kiln.CacheMiss):
            raise error
        return _fall_back(module, name, str(error), settings)

    if settings.mode == "progressive":
        return Progressive(make_boxed_func(module.forward), obtain, give_up)
    try:
        return obtain()
    except _kiln.Error as error:
        return give_up(error)


def _checked(
    run: Callable[[list[Any]], Any],
    program: _kiln.Program,
    module: torch.fx.GraphModule,
    name: str,
    graph: str,
    settings: Settings,
) -> Checked:
    def compile_part(part: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
        captured = capture(part, lambda _: False, f"{name}_part", _has_eager_random(settings))
        program = load_program(captured, settings, graph_device(part))
        return _runner(program, part, name, settings)

    library_ops = program.info()["library_ops"]
    return Checked(run, module, name, graph, compile_part, library_ops, settings.debug_dir)


def _runner(
    program: _kiln.Program,
    module: torch.fx.GraphModule,
    name: str,
    settings: Settings,
    fixed: frozenset[int] | None = None,
) -> Callable[[list[Any]], Any]:
    """Runs the program of `module`; by replays, where `fixed` has the inputs that keep their memory
    from call to call and the graph allows it."""
    run_native = program.run
    tokens = effect_token_inputs(module)
    if tokens:
        run_native = _without_inputs(run_native, tokens)
    updated, written = updated_inputs(module)
    if fixed is not None and not tokens and is_replayable(module):
        # A number of the CPU's is written to another place in each call.
        in_place = fixed.difference(scalar_inputs(module))
        run_native = Replayed(run_native, in_place, written, program.check)
    if updated:
        run_native = _with_updates(run_native, updated)
    device = graph_device(module)
    on_gpu = device.type == "cuda"
    passed = outputs_passed_on(module) if on_gpu else {}
    floats = number_inputs(module)
    numbers = {i: kind for i, kind in number_outputs(module).items() if i not in passed}
    if floats or numbers:
        run_native = _with_numbers(run_native, floats, numbers, device)
    scalars = scalar_inputs(module) if on_gpu else ()
    if scalars or passed:
        run_native = with_scalars(run_native, scalars, passed, device)
    if on_gpu and (program.info()["library_steps"] or not has_input_on_gpu(module)):
        run_native = with_current(run_native, device)

    def run(inputs: list[Any]) -> Any:
        try:
            outputs = run_native(inputs)
        except _kiln.InputMismatch as error:
            # The tensors differ from what was captured, as strides may after a graph break.
            return _fall_back(module, name, str(error), settings)(inputs)
        except IndexError:
            raise  # A kernel's: an index of the user's is outside of its dimension.
        except Exception as error:
            return _run_after(error, module, name, settings, inputs, bool(tokens))
        inputs.clear()
        return outputs

    run._boxed_call = True
    return run


def _run_after(
    error: Exception,
    module: torch.fx.GraphModule,
    name: str,
    settings: Settings,
    inputs: list[Any],
    has_effects: bool,
) -> Any:
    """Runs the graph eager where its program failed: such a run has written to none of its inputs.

    Where a library step failed, and the operator's error is the user's, such as a singular matrix,
    that raises it again, and nothing has fallen back.
    """
    if has_effects or settings.fallback == "raise":
        if isinstance(error, StepError):
            raise error.__cause__ or error
        raise RunError(f"kiln: {name}: {error}") from error
    outputs = make_boxed_func(module.forward)(list(inputs))
    STATISTICS.fell_back(name, str(error))
    inputs.clear()
    return outputs


def _without_inputs(
    run_native: Callable[[list[Any]], Any], positions: Sequence[int]
) -> Callable[[list[Any]], Any]:
    """`run_native` for a graph that lacks the inputs at `positions`."""
    left_out = frozenset(positions)

    def run(inputs: list[Any]) -> Any:
        return run_native([value for i, value in enumerate(inputs) if i not in left_out])

    return run


def _with_updates(
    run_native: Callable[[list[Any]], Any], updated: Sequence[int]
) -> Callable[[list[Any]], Any]:
    """`run_native` for a graph whose last outputs are new values of the inputs `updated`."""

    def run(inputs: list[Any]) -> Any:
        outputs = run_native(inputs)
        with torch.no_grad():
            for i, value in zip(updated, outputs[-len(updated) :], strict=True):
                inputs[i].copy_(value)
        return outputs[: -len(updated)]

    return run


def _with_numbers(
    run_native: Callable[[list[Any]], Any],
    floats: Sequence[int],
    numbers: Mapping[int, type],
    device: torch.device,
) -> Callable[[list[Any]], Any]:
    """`run_native` for a graph with Python's floats at the inputs `floats`, and `numbers` among its
    outputs: scalar tensors or sizes to the program."""

    def run(inputs: list[Any]) -> Any:
        given = list(inputs)
        for i in floats:
            given[i] = torch.full((), given[i], dtype=torch.float64, device=device)
        outputs = list(run_native(given))
        for i, kind in numbers.items():
            outputs[i] = kind(outputs[i])
        return outputs

    return run


def aot_backend(
    compile_graph: Callable[..., Callable[[list[Any]], Any]],
    eager_random: bool = False,
) -> Callable[..., Callable[..., Any]]:
    """A torch.compile backend that hands every graph to compile_graph(module, inputs, kind=...).

    `kind` is "forward", "backward" or "inference". What is captured follows from the settings here,
    so everything that captures goes through it.
    """
    def trace(device_type: str) -> Callable[..., Any]:
        return aot_autograd(
            fw_compiler=functools.partial(compile_graph, kind="forward"),
            bw_compiler=functools.partial(compile_graph, kind="backward"),
            inference_compiler=functools.partial(compile_graph, kind="inference"),
            decompositions=decompositions(device_type),
            partition_fn=partitioner(keep_random=eager_random),
            keep_inference_input_mutations=True,
        )

    def backend(module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        with resampling_kept_whole():
            device = traced_device(module, example_inputs)
            return trace(device.type)(module, example_inputs)

    return backend


def kiln_backend(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Backend for torch.compile, found through the entry point group torch_dynamo_backends.

    `options`: server, fallback, timeout_s, threads, arch, device, debug_dir, mode, check, fallback_random,
    fail_on_miss, prepare_memory, local_cache, tenant, priority and those of security; see Settings.
    Raises ValueError for an unknown option.

    With `mode` "progressive", here or among the options, calls run eager until the program has
    arrived, then natively: nobody waits for a compile. With "reduce-overhead" inference graphs of
    fixed sizes on a GPU are replayed as one CUDA graph. Other modes of torch.compile have no effect.
    """
    options = dict(options or {})
    if mode in MODES:
        options.setdefault("mode", mode)
    settings = Settings.read(options)
    compile_graph = functools.partial(_compile, settings=settings)
    return aot_backend(compile_graph, _has_eager_random(settings))(module, example_inputs)
