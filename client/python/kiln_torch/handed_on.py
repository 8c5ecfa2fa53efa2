"""Inputs that no program has, for graphs only hand them on.

Sizes of nested tensors' jagged dimensions: torch numbers the ragged shapes that it has met, and hands such a
number out where a size would be; a graph computes with the tensors of values and offsets. Objects of Python's, such
as the mesh of devices that a DTensor lies on; a graph's collectives have the name of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._library.fake_class_registry import FakeScriptObject
from torch.fx.experimental.symbolic_shapes import is_nested_int


def _is_jagged_size(value: Any) -> bool:
    return isinstance(value, torch.SymInt) and is_nested_int(value)


def _is_unread_object(node: torch.fx.Node) -> bool:
    is_object = isinstance(node.meta.get("val"), (FakeScriptObject, torch.ScriptObject))
    return is_object and all(user.op == "output" for user in node.users)


def handed_on(graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    """Those inputs."""
    return frozenset(
        node
        for node in graph.nodes
        if node.op == "placeholder"
        and (_is_jagged_size(node.meta.get("val")) or _is_unread_object(node))
    )


def outputs_handed_on(graph: torch.fx.Graph) -> Mapping[int, int]:
    """Input by output, positions, of the outputs that are such inputs."""
    inputs = handed_on(graph)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    positions = {node: i for i, node in enumerate(placeholders) if node in inputs}
    outputs = next(node for node in graph.nodes if node.op == "output").args[0]
    return {
        i: positions[output]
        for i, output in enumerate(outputs)
        if isinstance(output, torch.fx.Node) and output in positions
    }
