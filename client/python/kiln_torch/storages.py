"""Operators that take places of a storage, in graphs whose tensors are pointers to their first element.

torch counts such a place from where the storage begins, of whatever view it is asked of. A graph's tensor knows
nothing of what lies before it: here the place is counted from the tensor's own beginning. What lies between the
elements of a view, or behind its last, is only there in the memory that the view was taken of.

Of an output that is a view of an input AOTAutograd takes the place alone, and the view from the input that the caller
has: an output that a program has computed into memory of its own is moved to the place that it says.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false

from kiln_torch.sizes import CaptureError

_aten = torch.ops.aten
# Operators, with the position of their storage_offset.
_READS = {_aten.as_strided.default: 3, _aten.as_strided_copy.default: 3}
_WRITES = {_aten.as_strided_scatter.default: 4}


# A place of an output in its storage, in elements: the sum of each number by the sizes at those positions of the
# graph's inputs, each as often as it is there.
Place = tuple[tuple[int, tuple[int, ...]], ...]


def _viewed(node: torch.fx.Node) -> torch.fx.Node:
    """The value that `node` is a view of, in elements of the same type; or itself."""
    while True:
        # Of several views, such as those of a split, an item.
        view = node.args[0] if node.target is operator.getitem else node
        if not isinstance(view.target, torch._ops.OpOverload) or not view.target.is_view:
            break
        of = view.args[0]
        if not isinstance(of, torch.fx.Node) or of.meta["val"].dtype != node.meta["val"].dtype:
            break
        node = of
    return node


def _number(arg: Any) -> Any:
    return arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg


def _given(node: torch.fx.Node, args: Sequence[Any], position: int) -> Any:
    return args[position] if len(args) > position else node.kwargs.get("storage_offset")


def from_own_beginning(node: torch.fx.Node, target: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a call of `target`, with the places that it takes, if any, counted from where its first
    argument begins. Raises CaptureError where they may lie in memory that no value of the graph has."""
    position = _READS.get(target, _WRITES.get(target))
    if position is None:
        return args
    own = args[0].meta["val"].storage_offset()
    given = _given(node, args, position)
    place = own if given is None else _number(given)
    base = args[0]
    if target in _READS:
        base = _viewed(base)
        value = base.meta["val"]
        if base.op != "placeholder" and not is_non_overlapping_and_dense_or_false(value):
            raise CaptureError(f"node {node.name} takes places between the elements of {base.name}")
        own = value.storage_offset()
    place = place - own
    if isinstance(place, int) and place < 0:
        raise CaptureError(f"node {node.name} takes places before those of {base.name}")
    return [base, *args[1:position], place]


def _takes_place(node: torch.fx.Node) -> bool:
    """Whether `node` is a view at a place that is given, or a view of one."""
    while node.target is not _aten.as_strided.default:
        if node.target is not operator.getitem and not getattr(node.target, "is_view", False):
            return False
        node = node.args[0]
    return _given(node, node.args, _READS[node.target]) is not None


def output_places(module: torch.fx.GraphModule) -> Mapping[int, Place]:
    """By position, where the outputs lie that take places of a storage. Raises CaptureError where a place is no
    sum of products of sizes that the graph is given."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    symbols: dict[Any, int] = {}
    for i, node in enumerate(inputs):
        if isinstance(node.meta.get("val"), torch.SymInt):
            symbols.setdefault(node.meta["val"].node.expr, i)
    places = {}
    outputs = next(node for node in module.graph.nodes if node.op == "output").args[0]
    for i, node in enumerate(outputs):
        if not isinstance(node, torch.fx.Node) or not _takes_place(node):
            continue
        place = node.meta["val"].storage_offset()
        if isinstance(place, int):
            places[i] = ((place, ()),)
        else:
            places[i] = _terms(place.node.expr, symbols, node)
    return places


def _terms(expression: sympy.Expr, symbols: Mapping[Any, int], node: torch.fx.Node) -> Place:
    found = []
    for product, number in sympy.expand(expression).as_coefficients_dict().items():
        powers = {} if product == 1 else product.as_powers_dict()
        if not number.is_Integer or not all(
            size in symbols and power.is_Integer and power > 0 for size, power in powers.items()
        ):
            raise CaptureError(f"node {node.name}, an output, lies at {expression} of its storage")
        sizes = [symbols[size] for size, power in powers.items() for _ in range(int(power))]
        found.append((int(number), tuple(sizes)))
    return tuple(found)


def reach(tensor: torch.Tensor) -> int:
    """Elements from the first of the storage to the last of the tensor."""
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.storage_offset() + 1 + sum((size - 1) * stride for size, stride in steps)


def _moved(value: torch.Tensor, place: int) -> torch.Tensor:
    """`value` at `place` of its storage: a copy, which is no view of torch's, where it lies elsewhere."""
    if value.storage_offset() == place or value.numel() == 0:
        return value
    length = reach(value) - value.storage_offset()
    memory = value.new_empty(place + length)
    memory[place:] = value.as_strided((length,), (1,))
    return value.new_empty(0).set_(
        memory.untyped_storage(), place, value.shape, value.stride()
    )


def with_places(
    run: Callable[[list[Any]], Any], places: Mapping[int, Place]
) -> Callable[[list[Any]], Any]:
    """`run` of a graph whose outputs lie at `places`."""

    def run_placed(inputs: list[Any]) -> Any:
        outputs = list(run(inputs))
        with torch.no_grad():
            for i, terms in places.items():
                place = sum(number * math.prod(inputs[j] for j in sizes) for number, sizes in terms)
                outputs[i] = _moved(outputs[i], place)
        return outputs

    return run_placed
