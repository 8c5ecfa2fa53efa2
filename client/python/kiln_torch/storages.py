"""Operators that take places of a storage, in graphs whose tensors are pointers to their first element.

torch counts such a place from where the storage begins, of whatever view it is asked of. A graph's tensor knows
nothing of what lies before it: here the place is counted from the tensor's own beginning. What lies between the
elements of a view, or behind its last, is only there in the memory that the view was taken of.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false

from kiln_torch.sizes import CaptureError

_aten = torch.ops.aten
# Operators, with the position of their storage_offset.
_READS = {_aten.as_strided.default: 3, _aten.as_strided_copy.default: 3}
_WRITES = {_aten.as_strided_scatter.default: 4}


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


def from_own_beginning(node: torch.fx.Node, target: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a call of `target`, with the places that it takes, if any, counted from where its first
    argument begins. Raises CaptureError where they may lie in memory that no value of the graph has."""
    position = _READS.get(target, _WRITES.get(target))
    if position is None:
        return args
    own = args[0].meta["val"].storage_offset()
    given = args[position] if len(args) > position else node.kwargs.get("storage_offset")
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
