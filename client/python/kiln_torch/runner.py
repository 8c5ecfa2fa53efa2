"""One graph's calls: what AOTAutograd hands to a compiled graph, and what its program takes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import profiler

from kiln_torch import _kiln
from kiln_torch.capture import (
    has_effects,
    lazy_inputs,
    left_out_inputs,
    number_inputs,
    number_outputs,
)
from kiln_torch.devices import (
    cpu_inputs,
    graph_device,
    has_input_on_gpu,
    is_replayable,
    outputs_passed_on,
    with_current,
    with_inputs_copied,
)
from kiln_torch.handed_on import outputs_handed_on
from kiln_torch.indices import named
from kiln_torch.library import StepError
from kiln_torch.regions import Regions
from kiln_torch.replay import Replayed
from kiln_torch.settings import Settings
from kiln_torch.statistics import STATISTICS
from kiln_torch.storages import Place, output_places, with_places
from kiln_torch.updates import updated_inputs

Run = Callable[[list[Any]], Any]  # takes a list and empties it


class RunError(RuntimeError):
    """A program failed while it ran, with fallback="raise". Its cause says how."""


@dataclass(frozen=True)
class Convention:
    """What a graph's call has beside its program's. Positions, of inputs where nothing else is said."""

    device: torch.device
    lazy: Sequence[int]  # may be lazy views; counted without those left out
    left_out: Sequence[int]  # of the program: see left_out_inputs
    updated: Sequence[int]  # their new values are the program's last outputs
    written: Sequence[int]  # by the run
    floats: Sequence[int]  # scalar tensors to the program
    numbers: Mapping[int, type]  # outputs: scalar tensors or sizes to the program
    on_cpu: Sequence[int]  # of a GPU's graph: tensors of the CPU
    passed: Mapping[int, int]  # input by output: handed on as they came
    places: Mapping[int, Place]  # of outputs in their storages
    has_effects: bool
    has_input_on_gpu: bool
    is_replayable: bool

    @classmethod
    def of(cls, module: torch.fx.GraphModule, kind: str) -> Convention:
        """Raises CaptureError, as graph_device does."""
        device = graph_device(module)
        on_gpu = device.type == "cuda"
        updated, written = updated_inputs(module)
        passed = {
            **(outputs_passed_on(module) if on_gpu else {}),
            **outputs_handed_on(module.graph),
        }
        numbers = number_outputs(module)
        return cls(
            device=device,
            lazy=lazy_inputs(module, kind),
            left_out=left_out_inputs(module),
            updated=updated,
            written=written,
            floats=number_inputs(module),
            numbers={i: number for i, number in numbers.items() if i not in passed},
            on_cpu=cpu_inputs(module) if on_gpu else (),
            passed=passed,
            places={i: place for i, place in output_places(module).items() if i not in passed},
            has_effects=has_effects(module),
            has_input_on_gpu=has_input_on_gpu(module),
            is_replayable=is_replayable(module),
        )


@dataclass(frozen=True)
class CapturedGraph:
    """A graph after AOTAutograd: all that it takes to get its program and to run that."""

    kind: str  # "forward", "backward" or "inference"
    text: str  # kiln.v1.Graph as protobuf JSON
    convention: Convention
    parameters: frozenset[int]  # see static_inputs


class Eager:
    """A boxed function that runs a graph operator by operator, through torch."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self._boxed_call = True
        self._module = module

    @property
    def module(self) -> torch.fx.GraphModule:
        return self._module

    def __call__(self, inputs: list[Any]) -> Any:
        return self.module.forward(*inputs)


def fall_back(eager: Run, name: str, reason: str, settings: Settings) -> Run:
    """What runs instead of a program; raises with fallback="raise"."""
    if settings.fallback == "raise":
        raise RuntimeError(f"kiln: {name}: {reason}")
    STATISTICS.fell_back(name, reason)
    return eager


def runner(
    program: _kiln.Program,
    graph: CapturedGraph,
    eager: Eager,
    name: str,
    settings: Settings,
    fixed: frozenset[int] | None = None,
) -> Run:
    """Runs the program of a graph; by replays, where `fixed` has the inputs that keep their memory
    from call to call and the graph allows it."""
    run_native, convention = program.run, graph.convention
    device, left_out = convention.device, convention.left_out
    if left_out:
        run_native = _without_inputs(run_native, left_out)
    if fixed is not None and not left_out and convention.is_replayable:
        # A tensor of the CPU's is copied to another place in each call.
        in_place = fixed.difference(convention.on_cpu)
        run_native = Replayed(run_native, in_place, convention.written, program.check)
    if convention.updated:
        run_native = _with_updates(run_native, convention.updated)
    if convention.floats or convention.numbers:
        run_native = _with_numbers(run_native, convention.floats, convention.numbers, device)
    if convention.on_cpu or convention.passed:
        run_native = with_inputs_copied(run_native, convention.on_cpu, convention.passed, device)
    if convention.places:
        run_native = with_places(run_native, convention.places)
    if device.type == "cuda" and (
        program.info()["library_steps"] or not convention.has_input_on_gpu
    ):
        run_native = with_current(run_native, device)

    run_in_regions = Regions(program, run_native)
    library_steps = program.info()["library_steps"]

    def run(inputs: list[Any]) -> Any:
        try:
            if profiler._is_profiler_enabled:
                outputs = run_in_regions(inputs)
            else:
                outputs = run_native(inputs)
        except _kiln.InputMismatch as error:
            # The tensors differ from what was captured, as strides may after a graph break.
            return fall_back(eager, name, str(error), settings)(inputs)
        except (IndexError, _kiln.DivisionByZero) as error:
            # A kernel's: an index of the user's is outside of its dimension, or a divisor 0.
            raise named(error, inputs, eager.module, graph.text, device) from None
        except Exception as error:
            return _run_after(error, eager, name, settings, inputs, convention.has_effects)
        inputs.clear()
        return outputs

    run._boxed_call = True
    # For `shortened`: all that the calls of some graphs do. Library steps are Python. A GPU's index
    # error may be of an earlier run, and to run once more would not show it again.
    if run_native == program.run and library_steps == 0:
        of_gpu = functools.partial(named, module=eager.module, text=graph.text, device=device)
        run.direct = program, convention.written, of_gpu if device.type == "cuda" else None
    return run


def _run_after(
    error: Exception, eager: Run, name: str, settings: Settings, inputs: list[Any], has_effects: bool
) -> Any:
    """Runs the graph eager where its program failed: such a run has written to none of its inputs.

    Where a library step failed, and the operator's error is the user's, such as a singular matrix,
    that raises it again, and nothing has fallen back.
    """
    if has_effects or settings.fallback == "raise":
        if isinstance(error, StepError):
            raise error.__cause__ or error
        raise RunError(f"kiln: {name}: {error}") from error
    outputs = eager(list(inputs))
    STATISTICS.fell_back(name, str(error))
    inputs.clear()
    return outputs


def _without_inputs(run_native: Run, positions: Sequence[int]) -> Run:
    """`run_native` for a graph that lacks the inputs at `positions`."""
    left_out = frozenset(positions)

    def run(inputs: list[Any]) -> Any:
        return run_native([value for i, value in enumerate(inputs) if i not in left_out])

    return run


def _with_updates(run_native: Run, updated: Sequence[int]) -> Run:
    """`run_native` for a graph whose last outputs are new values of the inputs `updated`."""

    def run(inputs: list[Any]) -> Any:
        outputs = run_native(inputs)
        with torch.no_grad():
            for i, value in zip(updated, outputs[-len(updated) :], strict=True):
                inputs[i].copy_(value)
        return outputs[: -len(updated)]

    return run


def _with_numbers(
    run_native: Run, floats: Sequence[int], numbers: Mapping[int, type], device: torch.device
) -> Run:
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
