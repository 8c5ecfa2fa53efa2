"""Eager runs of a captured graph: on copies of its inputs, and in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from kiln_torch.storages import reach

_LOW = (torch.float16, torch.bfloat16, torch.float32)


def copies(values: Sequence[Any]) -> list[Any]:
    """Copies with the same sizes, strides and offsets; what shared storage shares it again."""
    storages: dict[tuple[int, torch.dtype], int] = {}
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    for tensor in tensors:
        key = (tensor.untyped_storage()._cdata, tensor.dtype)
        storages[key] = max(storages.get(key, 0), reach(tensor))
    with torch.no_grad():
        bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        for tensor in tensors:
            key = (tensor.untyped_storage()._cdata, tensor.dtype)
            if key not in bases:
                flat = tensor.detach().as_strided((storages[key],), (1,), 0)
                bases[key] = flat.clone()
        return [
            bases[(v.untyped_storage()._cdata, v.dtype)].as_strided(
                v.shape, v.stride(), v.storage_offset()
            )
            if isinstance(v, torch.Tensor)
            else v
            for v in values
        ]


def is_random(node: torch.fx.Node) -> bool:
    """Whether it draws from a generator."""
    return isinstance(node.target, torch._ops.OpOverload) and (
        torch.Tag.nondeterministic_seeded in node.target.tags
    )


def _widest(value: Any) -> Any:
    """Of a dtype among the arguments."""
    return torch.float64 if isinstance(value, torch.dtype) and value in _LOW else value


class Double(torch.fx.Interpreter):
    """Runs a graph with float64 in the place of every narrower floating type.

    Random operators draw as they do in their own type, so that all runs have one stream.
    """

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op in ("placeholder", "get_attr"):
            return tree_map(_double, super().run_node(n))
        if n.op != "call_function":
            return super().run_node(n)
        if is_random(n):
            args, kwargs = torch.fx.node.map_arg((n.args, n.kwargs), self._as_captured)
            return tree_map(_double, n.target(*args, **kwargs))
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return n.target(*tree_map(_widest, args), **tree_map(_widest, kwargs))

    def _as_captured(self, node: torch.fx.Node) -> Any:
        value, captured = self.env[node], node.meta.get("val")
        if isinstance(value, torch.Tensor) and isinstance(captured, torch.Tensor):
            return value.to(captured.dtype)
        return value


def _double(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype not in _LOW:
        return value
    if value.numel() == 0:
        return value.double()
    flat = value.as_strided((reach(value),), (1,), 0).double()
    return flat.as_strided(value.shape, value.stride(), value.storage_offset())


def in_float64(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """The graph's outputs in float64, or None where an operator refuses that."""
    try:
        with torch.no_grad():
            return Double(module).run(*inputs)
    except Exception:  # whatever an operator of torch raises for a type that it lacks
        return None
