"""Which operator of a graph gives the first wrong value."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kiln_torch.capture import source_location
from kiln_torch.compare import difference
from kiln_torch.devices import graph_device, set_random_state
from kiln_torch.reference import Double, copies

CompileGraph = Callable[[torch.fx.GraphModule], Callable[[list[Any]], Any]]


@dataclass(frozen=True)
class Finding:
    node: torch.fx.Node
    what: str
    how: str  # in which graph the difference was seen

    def sentence(self) -> str:
        call = self.node
        if call.target is operator.getitem:
            call = call.args[0]
        origin = call.meta.get("original_aten")
        of = f", of {origin}" if origin is not None and str(origin) != str(call.target) else ""
        line = source_location(call)
        at = f", {line}" if line else ""
        name = f"{call.target} (node {call.name}{of}){at}"
        return f"First wrong operator: {name}: {self.what} ({self.how})."


class _Recorded:
    """Every node's value in eager mode and, where it can be had, in float64."""

    def __init__(self, module: torch.fx.GraphModule, inputs: list[Any], state: Any) -> None:
        self.values = _record(torch.fx.Interpreter, module, inputs, state)
        self.wide = _record(Double, module, inputs, state)

    def difference(self, node: torch.fx.Node, ours: Any) -> str | None:
        return difference(ours, self.values[node], self.wide.get(node))


def _record(kind: Any, module: torch.fx.GraphModule, inputs: list[Any], state: Any) -> dict:
    values: dict[torch.fx.Node, Any] = {}

    class Recording(kind):
        def run_node(self, n: torch.fx.Node) -> Any:
            values[n] = super().run_node(n)
            return values[n]

    set_random_state(state, graph_device(module))
    try:
        with torch.no_grad():
            Recording(module, garbage_collect_values=False).run(*copies(inputs))
    except Exception:  # where float64 is refused: the values until then
        pass
    return values


def _with_outputs(
    module: torch.fx.GraphModule, outputs: Sequence[torch.fx.Node]
) -> torch.fx.GraphModule:
    """The part of the graph that makes these values."""
    graph = torch.fx.Graph()
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in module.graph.nodes:
        if node.op != "output":
            made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(tuple(made[node] for node in outputs))
    graph.eliminate_dead_code()
    return torch.fx.GraphModule(module, graph)


def _ancestors(node: torch.fx.Node) -> set[torch.fx.Node]:
    found, left = set(), [node]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += one.all_input_nodes
    return found


def locate(
    module: torch.fx.GraphModule,
    output: int,
    inputs: list[Any],
    state: torch.Tensor,
    compile_graph: CompileGraph,
) -> Finding | None:
    """The first operator whose value differs, among those that output number `output` is made of.

    The graph is compiled again with every value as an output, which alters what is fused. Where
    nothing differs then, prefixes of it that end in one value are tried, by halves.
    """
    (end,) = (node for node in module.graph.nodes if node.op == "output")
    wrong = end.args[0][output] if isinstance(end.args[0], (list, tuple)) else end.args[0]
    if not isinstance(wrong, torch.fx.Node) or wrong.op != "call_function":
        return None
    recorded = _Recorded(module, inputs, state)
    reach = _ancestors(wrong)
    nodes = [
        node
        for node in module.graph.nodes
        if node in reach
        and node.op == "call_function"
        and isinstance(node.meta.get("val"), torch.Tensor)
        and isinstance(recorded.values.get(node), torch.Tensor)
    ]

    def run(outputs: Sequence[torch.fx.Node]) -> list[Any]:
        compiled = compile_graph(_with_outputs(module, outputs))
        set_random_state(state, graph_device(module))
        return compiled(copies(inputs))

    return (
        _among_all(nodes, recorded, run)
        or _by_halves(nodes, recorded, run)
        or Finding(wrong, "right as soon as its graph is cut", "wrong in the whole graph only")
    )


def _among_all(nodes: list[torch.fx.Node], recorded: _Recorded, run: Callable) -> Finding | None:
    try:
        values = run(nodes)
    except Exception:
        return None
    for node, value in zip(nodes, values, strict=True):
        what = recorded.difference(node, value)
        if what is not None:
            return Finding(node, what, "with every value of the graph kept")
    return None


def _by_halves(nodes: list[torch.fx.Node], recorded: _Recorded, run: Callable) -> Finding | None:
    """The shortest prefix found that is wrong. Each is compiled for its last value alone."""
    found = None
    low, high = 0, len(nodes) - 1
    while low <= high:
        middle = (low + high) // 2
        try:
            what = recorded.difference(nodes[middle], run([nodes[middle]])[0])
        except Exception:
            what = None
        if what is not None:
            found, high = Finding(nodes[middle], what, "in the graph that ends there"), middle - 1
        else:
            low = middle + 1
    return found
