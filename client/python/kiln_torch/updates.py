"""The inputs that a graph updates: parameters, optimizer states, caches, running statistics."""

from __future__ import annotations

import torch

from kiln_torch.sizes import CaptureError

# How AOTAutograd writes an update, where it leaves that to the graph.
COPY = torch.ops.aten.copy_.default

# What kernels compute with; they pass other types on.
_WRITABLE = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
)


def is_writable(placeholder: torch.fx.Node) -> bool:
    value = placeholder.meta["val"]
    return value.dtype in _WRITABLE and not value.is_neg()


def _is_empty(node: torch.fx.Node) -> bool:
    return any(isinstance(size, int) and size == 0 for size in node.meta["val"].shape)


def updates(module: torch.fx.GraphModule) -> list[tuple[torch.fx.Node, torch.fx.Node]]:
    """(input, its new value) of every input with elements that the graph updates.

    AOTAutograd writes that as a copy_ into the input after everything that reads it.
    """
    found = []
    updated: set[torch.fx.Node] = set()
    for node in module.graph.nodes:
        late = updated.intersection(node.all_input_nodes) if node.op != "output" else ()
        if late:
            raise CaptureError(f"node {node.name} reads {late.pop().name} after its update")
        if node.target is COPY:
            target, source = node.args[:2]
            if target.op != "placeholder":
                raise CaptureError(f"node {node.name} writes to {target.name} in place")
            updated.add(target)
            if not _is_empty(target):
                found.append((target, source))
    return found


def updated_inputs(module: torch.fx.GraphModule) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions of the inputs that the graph updates.

    First those whose new values follow the graph's outputs, in that order, for the caller to copy: no
    kernel writes them in place. Then those that the run writes, in the order of its mutations.
    """
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    targets = [target for target, _ in updates(module)]
    return tuple(
        tuple(placeholders.index(t) for t in targets if is_writable(t) == written)
        for written in (False, True)
    )
