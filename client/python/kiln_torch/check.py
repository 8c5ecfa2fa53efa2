"""options={"check": True}: every graph also runs eager, and the first difference stops the program.

What is compared is the graph that was compiled, after AOTAutograd and the decompositions, run by
torch on copies of its inputs. The decompositions are held against their operators by their tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kiln_torch.capture import left_out_inputs
from kiln_torch.compare import difference
from kiln_torch.devices import graph_device, random_state, set_random_state
from kiln_torch.locate import Finding, locate
from kiln_torch.reference import copies, in_float64
from kiln_torch.repro import write_repro
from kiln_torch.statistics import STATISTICS
from kiln_torch.updates import updated_inputs

Run = Callable[[list[Any]], Any]


class CheckFailed(RuntimeError):
    """A graph's result differs from eager's. The text names graph, operator, line and repro."""


def _flat(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def _eager(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    with torch.no_grad():
        return _flat(module.forward(*inputs))


def _first_difference(
    ours: Sequence[Any], eager: Sequence[Any], reference: Sequence[Any] | None
) -> tuple[int, str] | None:
    wide = reference if reference is not None else [None] * len(eager)
    if len(ours) != len(eager):
        return 0, f"is one of {len(ours)}; eager gives {len(eager)}"
    for i, (a, e, r) in enumerate(zip(ours, eager, wide, strict=True)):
        what = difference(a, e, r)
        if what is not None:
            return i, what
    return None


class Checked:
    """A boxed function that runs `native` and compares it with the graph in eager mode.

    `compile_graph(module)` compiles a part of the graph as the whole was, and returns a function of
    a list of inputs; `graph_json` is what was sent. Raises CheckFailed.
    """

    def __init__(
        self,
        native: Run,
        module: torch.fx.GraphModule,
        name: str,
        graph_json: str,
        compile_graph: Callable[[torch.fx.GraphModule], Run],
        library_ops: dict[str, int],
        folder: str,
    ) -> None:
        self._boxed_call = True
        self._native = native
        self._module = module
        self._updated = [i for positions in updated_inputs(module) for i in positions]
        self._name = name
        self._device = graph_device(module)
        self._graph_json = graph_json
        self._compile_graph = compile_graph
        self._library_ops = library_ops
        self._folder = folder
        STATISTICS.checks("graphs")

    def __call__(self, inputs: list[Any]) -> Any:
        STATISTICS.checks("calls")
        before = copies(inputs)
        state = random_state(self._device)
        reference = in_float64(self._module, copies(before))
        set_random_state(state, self._device)
        theirs = copies(before)
        try:
            eager, refusal = _eager(self._module, theirs), None
        except Exception as error:  # then the graph has to raise as well
            eager, refusal = [], error
        eager_state = random_state(self._device)
        set_random_state(state, self._device)
        left = [*eager, *(theirs[i] for i in self._updated)]
        after = list(inputs)  # the call empties its list
        ours = self._native(inputs)
        if refusal is not None:
            self._fail(f"it gives a result; eager raises {refusal!r}", None, before, [], state)
        self._compare(ours, eager, reference, before, left, state)
        self._compare_inputs(after, theirs, before, left, state)
        if not torch.equal(random_state(self._device), eager_state):
            what = "its random operators draw another number of values than eager's"
            self._fail(what, None, before, left, state)
        return ours

    def _compare(
        self,
        ours: Any,
        eager: list[Any],
        reference: Any,
        before: list[Any],
        left: list[Any],
        state: torch.Tensor,
    ) -> None:
        wide = _flat(reference) if reference is not None else None
        found = _first_difference(_flat(ours), eager, wide)
        if found is None:
            return
        output, what = found
        finding = locate(self._module, output, before, state, self._compile_graph)
        self._fail(f"output {output} {what}", finding, before, left, state)

    def _compare_inputs(
        self, after: list[Any], theirs: list[Any], before: list[Any], left: list[Any], state: Any
    ) -> None:
        found = _first_difference(after, theirs, None)
        if found is not None:
            names = [node.name for node in self._module.graph.nodes if node.op == "placeholder"]
            what = f"input {found[0]} ({names[found[0]]}), after the call, {found[1]}"
            self._fail(what, None, before, left, state)

    def _fail(
        self,
        what: str,
        finding: Finding | None,
        before: list[Any],
        expected: list[Any],
        state: torch.Tensor,
    ) -> None:
        STATISTICS.checks("differences")
        lines = [f"kiln: {self._name} differs from eager: {what}."]
        if finding is not None:
            lines.append(finding.sentence())
        left_out = left_out_inputs(self._module)
        folder = write_repro(
            self._folder,
            self._name,
            lines,
            self._graph_json,
            [value for i, value in enumerate(before) if i not in left_out],
            expected,
            self._library_ops,
            state,
            self._device,
        )
        raise CheckFailed("\n".join([*lines, f"To see it again: {folder}/README"]))
