"""Sizes of nested tensors' jagged dimensions: torch numbers the ragged shapes that it has met, and hands
such a number out where a size would be. A graph computes with the tensors of values and offsets and only
passes these on, so no program has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import is_nested_int


def is_jagged_size(value: Any) -> bool:
    return isinstance(value, torch.SymInt) and is_nested_int(value)


def jagged_sizes(graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    """The inputs that are sizes of jagged dimensions."""
    return frozenset(
        node
        for node in graph.nodes
        if node.op == "placeholder" and is_jagged_size(node.meta.get("val"))
    )


def jagged_sizes_passed_on(graph: torch.fx.Graph) -> Mapping[int, int]:
    """Input by output, positions, of the outputs that are such inputs."""
    jagged = jagged_sizes(graph)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    positions = {node: i for i, node in enumerate(placeholders) if node in jagged}
    outputs = next(node for node in graph.nodes if node.op == "output").args[0]
    return {
        i: positions[output]
        for i, output in enumerate(outputs)
        if isinstance(output, torch.fx.Node) and output in positions
    }
