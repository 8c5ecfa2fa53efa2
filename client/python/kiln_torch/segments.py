"""Graphs with operators that no program can have: torch's higher-order ones, such as control flow, which
runs branches as its values say, custom operators that torch has made functional, those that take or make
sparse tensors, those whose values are sizes of what follows, and what a GPU's graph does on the CPU. They run in
Python, between programs of what comes before them and after them, and the branches of control flow are programs as
well.

Every node has a depth: 0 for what follows from the graph's inputs without such an operator, and one more
than the deepest such operator that it follows from. What is native at one depth is one program.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._C import DispatchKey
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.effects import with_effects
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op, while_loop_stack_output_op
from torch._ops import HigherOrderOperator
from torch._prims_common import is_contiguous_or_false

from kiln_torch.capture import RANDOM_AGAIN
from kiln_torch.devices import is_cpu_work, mark_cpu_work, traced_device
from kiln_torch.library import unobserved
from kiln_torch.updates import COPY

Node = torch.fx.Node
Run = Callable[[list[Any]], Any]  # takes a list and empties it

# Which of their arguments are graphs. Their kernels call those as Python functions.
_BRANCHES = {
    cond_op: (1, 2),
    while_loop_op: (0, 1),
    while_loop_stack_output_op: (0, 1),
    scan_op: (0,),
    map_impl: (0,),
}
# Those that a program can have.
_SENT = frozenset({with_effects, *RANDOM_AGAIN})
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)


def _value(node: Node) -> Any:
    return node.meta.get("val")


def _is_number(node: Node) -> bool:
    return isinstance(_value(node), _NUMBERS)


def _is_symbol(value: Any) -> bool:
    """Whether `value` is a size that no sizes of inputs say."""
    return (
        isinstance(value, torch.SymInt)
        and value.node.expr.is_Symbol
        and value.node.shape_env.is_unbacked_symint(value.node.expr)
    )


def _has_sparse(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_sparse, value))
    return isinstance(value, torch.Tensor) and value.layout != torch.strided


def _makes_sizes(node: Node) -> bool:
    """Whether sizes follow from the values of what `node` takes, as those of nonzero."""
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        return _makes_sizes(node.args[0])
    return any(symbol.is_integer for symbol in node.meta.get("unbacked_bindings") or ())


def _is_foreign(node: Node) -> bool:
    if node.op != "call_function":
        return False
    if _makes_sizes(node) or is_cpu_work(node):
        return True
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        return _is_foreign(node.args[0])
    if isinstance(node.target, HigherOrderOperator):
        return node.target not in _SENT
    return any(_has_sparse(_value(n)) for n in (node, *node.all_input_nodes))


def _is_native(node: Node) -> bool:
    return node.op == "call_function" and not _is_foreign(node) and not _is_number(node)


def _draws(node: Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def can_be_parted(
    module: torch.fx.GraphModule, eager_random: bool, is_refused: bool = False
) -> bool:
    """Not where operators have to keep an order that no argument shows, as those do that draw eager's random
    numbers, nor where no part is native; where nothing but sizes that follow from values or work of the
    CPU's beside a GPU's asks for it, only if the graph `is_refused` as a whole."""
    if is_refused:
        mark_cpu_work(module)
    nodes = list(module.graph.nodes)
    if any(node.target is with_effects for node in nodes):
        return False
    draws = list(filter(_draws, nodes))
    if eager_random and draws:
        return False
    if not all(_can_lay_out(_value(node)) for node in nodes if _makes_sizes(node)):
        return False
    if draws and traced_device(module).type == "cuda" and not _run_in_order(draws, nodes):
        return False
    has_programs = any(_is_native(node) or node.target in _BRANCHES for node in nodes)
    return has_programs and any(
        _is_foreign(node) and (is_refused or not _makes_sizes(node)) for node in nodes
    )


def _depths(nodes: Iterable[Node]) -> dict[Node, int]:
    """Of every call. What writes to inputs comes after everything that may read them."""
    depths: dict[Node, int] = {}
    written: list[Node] = []
    for node in nodes:
        if node.op != "call_function":
            continue
        if node.target is COPY:
            written.append(node)
            continue
        sources = [source for source in node.all_input_nodes if source in depths]
        if _is_native(node):
            depths[node] = max([0, *(depths[s] + _is_foreign(s) for s in sources)])
        elif _is_number(node) and not _is_foreign(node):  # programs compute it, too
            depths[node] = max((depths[s] + _is_foreign(s) for s in sources), default=-1)
        else:
            depths[node] = max((depths[s] for s in sources), default=-1)
    last = max(depths.values(), default=-1) + 1
    return {**depths, **dict.fromkeys(written, last)}


def _run_in_order(some: Iterable[Node], nodes: Iterable[Node]) -> bool:
    """Whether `some` of the graph's nodes come one after another, part by part, as in the graph."""
    depths = _depths(nodes)
    order = [depths[node] for node in some]
    return order == sorted(order)


@dataclass
class Segment:
    """What is native at one depth, as a graph of its own."""

    module: torch.fx.GraphModule
    inputs: list[Node]  # of the whole graph
    outputs: list[Node]


def _segment(owner: torch.fx.GraphModule, nodes: list[Node], symbols: list[Node]) -> Segment:
    inside = set(nodes)
    taken = {source for node in nodes for source in node.all_input_nodes if source not in inside}
    order = [node for node in owner.graph.nodes if node in taken or node in symbols]
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    inputs = [node for node in order if node.op != "get_attr"]
    for node in inputs:
        name = str(node.target) if node.op == "placeholder" else node.name
        copies[node] = graph.placeholder(name)
        copies[node].meta = dict(node.meta)
    for node in [*(node for node in order if node.op == "get_attr"), *nodes]:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    outputs = [
        node
        for node in nodes
        if _is_native(node)
        and not isinstance(_value(node), (tuple, list))
        and any(user not in inside or not _is_native(user) for user in node.users)
    ]
    graph.output(tuple(copies[node] for node in outputs))
    return Segment(torch.fx.GraphModule(owner, graph), inputs, outputs)


def _with_tuple(branch: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`branch`, whose result may be one value, as a graph whose result is a tuple."""
    graph = torch.fx.Graph()
    output = graph.graph_copy(branch.graph, {})
    graph.output(output if isinstance(output, (tuple, list)) else (output,))
    return torch.fx.GraphModule(branch, graph)


def _branch_run(branch: torch.fx.GraphModule, call: Run) -> Callable[..., Any]:
    output = next(node for node in branch.graph.nodes if node.op == "output").args[0]
    is_one = not isinstance(output, (tuple, list))
    # torch traces a branch with copies of its operands: the rows of a scan come as they lie in the whole.
    traced = [_value(node) for node in branch.graph.nodes if node.op == "placeholder"]
    as_copied = [isinstance(v, torch.Tensor) and is_contiguous_or_false(v) for v in traced]

    def run(*operands: Any) -> Any:
        given = zip(operands, as_copied, strict=True)
        results = tuple(call([v.contiguous() if copied else v for v, copied in given]))
        return results[0] if is_one else results

    return run


def _plain(value: Any) -> Any:
    """What a program takes: memory as it lies there."""
    if isinstance(value, torch.Tensor):
        return value if _has_sparse(value) else value.resolve_conj().resolve_neg()
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def _strides(traced: torch.Tensor, sizes: Sequence[int]) -> list[Any]:
    """Those that `traced` has where its sizes are `sizes`: integers, or expressions of other sizes."""
    known = {
        size.node.expr: given
        for size, given in zip(traced.shape, sizes, strict=True)
        if isinstance(size, torch.SymInt)
    }
    return [
        stride.node.expr.subs(known) if isinstance(stride, torch.SymInt) else stride
        for stride in traced.stride()
    ]


def _can_lay_out(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_can_lay_out, value))
    if not isinstance(value, torch.Tensor):
        return True
    return all(isinstance(s, (int, sympy.Integer)) for s in _strides(value, [1] * value.dim()))


def _laid_out(value: Any, traced: Any) -> Any:
    """`value` with its elements in memory as `traced` has them, whose sizes nobody knew."""
    if isinstance(value, (tuple, list)):
        return [_laid_out(v, t) for v, t in zip(value, traced, strict=True)]
    if not isinstance(value, torch.Tensor):
        return value
    strides = [int(stride) for stride in _strides(traced, value.shape)]
    if list(value.stride()) == strides:
        return value
    return value.new_empty_strided(value.shape, strides).copy_(value)


class Parted:
    """A boxed function that runs a graph part by part.

    `compile_graph(module, inputs)` gives the boxed function of a part: `inputs` are the whole graph's
    nodes that it takes, none of a branch, whose operands are its own.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        compile_graph: Callable[[torch.fx.GraphModule, Sequence[Node]], Run],
    ) -> None:
        self._boxed_call = True
        nodes = list(module.graph.nodes)
        self._placeholders = [node for node in nodes if node.op == "placeholder"]
        self._output = next(node for node in nodes if node.op == "output")
        self._constants = {
            node: _attribute(module, str(node.target)) for node in nodes if node.op == "get_attr"
        }
        symbols = [node for node in self._placeholders if isinstance(_value(node), torch.SymInt)]
        found = [node for node in nodes if node.op == "call_function" and _is_symbol(_value(node))]
        depths = _depths(nodes)
        steps: list[tuple[Callable[[dict[Node, Any]], None], set[Node]]] = []
        for depth in range(-1, max(depths.values()) + 1):
            here = [node for node in nodes if depths.get(node) == depth]
            if any(map(_is_native, here)):
                # Numbers that follow from sizes are expressions in a program, and values here.
                known = symbols + [node for node in found if depths[node] < depth]
                part = _segment(module, [node for node in here if not _is_foreign(node)], known)
                run = compile_graph(part.module, part.inputs)
                steps.append((_run_segment(part, run), set(part.inputs)))
            for node in here:
                if not _is_native(node):
                    self._compile_branches(node, compile_graph)
                    steps.append((_run_node(node), set(node.all_input_nodes)))
        self._steps = _with_last_readers(steps, set(self._output.all_input_nodes))

    def _compile_branches(
        self,
        node: Node,
        compile_graph: Callable[[torch.fx.GraphModule, Sequence[Node]], Run],
    ) -> None:
        for position in _BRANCHES.get(node.target, ()):
            branch = node.args[position]
            if isinstance(self._constants.get(branch), torch.fx.GraphModule):
                graph = self._constants[branch]
                run = compile_graph(_with_tuple(graph), ())
                self._constants[branch] = _branch_run(graph, run)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        values = {**self._constants, **dict(zip(self._placeholders, inputs, strict=True))}
        inputs.clear()
        for run, done in self._steps:
            run(values)
            for node in done:
                del values[node]
        return list(torch.fx.map_arg(self._output.args[0], values.__getitem__))


def _attribute(module: torch.fx.GraphModule, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _run_segment(part: Segment, run: Run) -> Callable[[dict[Node, Any]], None]:
    def step(values: dict[Node, Any]) -> None:
        results = run([values[node] for node in part.inputs])
        values.update(zip(part.outputs, results, strict=True))

    return step


def _run_node(node: Node) -> Callable[[dict[Node, Any]], None]:
    target = node.target
    if target in _BRANCHES:
        target = target.py_kernels[DispatchKey.CompositeExplicitAutograd]

    def step(values: dict[Node, Any]) -> None:
        args = torch.fx.map_arg(node.args, values.__getitem__)
        kwargs = torch.fx.map_arg(node.kwargs, values.__getitem__)
        with torch.no_grad(), unobserved():
            value = _plain(target(*args, **kwargs))
            values[node] = _laid_out(value, _value(node)) if _makes_sizes(node) else value

    return step


def _with_last_readers(
    steps: list[tuple[Callable[[dict[Node, Any]], None], set[Node]]], kept: set[Node]
) -> list[tuple[Callable[[dict[Node, Any]], None], list[Node]]]:
    """Each step with what nothing reads after it."""
    read = set(kept)
    found = []
    for run, sources in reversed(steps):
        found.append((run, [node for node in sources if node not in read]))
        read |= sources
    return found[::-1]
