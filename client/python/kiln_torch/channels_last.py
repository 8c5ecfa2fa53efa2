"""Graphs with convolutions on a GPU, with what these read and give channels last.

cuDNN's fast convolutions take images and weights in that order of dimensions: of others it makes
copies before and after each call. Once the first convolution has its operands so, eager's rules hand
the order on from operator to operator.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

aten = torch.ops.aten

_LOG = logging.getLogger("kiln_torch")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Operators whose arguments name strides: what they mean depends on how their input lies in memory.
_OF_STRIDES = (aten.as_strided, aten.set_, aten.as_strided_scatter, aten.as_strided_copy)


def _is_convolution(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and node.target == aten.convolution.default


def _value(arg: Any) -> Any:
    return arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg


def _suits(node: torch.fx.Node) -> bool:
    """Whether that convolution is faster so: of images, without groups."""
    image, weight = (_value(arg) for arg in node.args[:2])
    return image.dim() == 4 and image.dtype in _DTYPES and weight.dtype in _DTYPES and node.args[8] == 1


def _has_fixed_sizes(graph: torch.fx.Graph) -> bool:
    return all(
        isinstance(size, int)
        for node in graph.nodes
        for value in pytree.tree_leaves(node.meta.get("val"))
        if isinstance(value, torch.Tensor)
        for size in value.shape
    )


class _Rewrite:
    """A copy of the graph, operator by operator, with the values that fake tensors give. REQUIRES:
    every convolution suits.
    """

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.graph = torch.fx.Graph()
        self.module = module
        self.copies: dict[torch.fx.Node, torch.fx.Node] = {}  # by node of the old graph
        self.ordered: dict[tuple[torch.fx.Node, torch.memory_format], torch.fx.Node] = {}

    def run(self) -> torch.fx.GraphModule:
        for node in self.module.graph.nodes:
            self.copies[node] = self._copy(node)
        return torch.fx.GraphModule(self.module, self.graph)

    def _copy(self, node: torch.fx.Node) -> torch.fx.Node:
        if node.op == "output":
            outputs = [self._as_before(arg) for arg in node.args[0]]
            return self.graph.output(tuple(outputs) if isinstance(node.args[0], tuple) else outputs)
        copy = self.graph.node_copy(node, self.copies.__getitem__)
        if node.op != "call_function":
            return copy
        if _is_convolution(node):
            operands = [self._in_order(arg, torch.channels_last) for arg in copy.args[:2]]
            copy.args = (*operands, *copy.args[2:])
            self._move_to_end(copy)
        try:
            copy.meta["val"] = self._evaluate(copy)
        except (RuntimeError, ValueError):
            # A view that this order in memory does not allow.
            inputs = {arg: self._in_order(arg, torch.contiguous_format) for arg in copy.all_input_nodes}
            copy.args, copy.kwargs = torch.fx.map_arg((copy.args, copy.kwargs), inputs.__getitem__)
            self._move_to_end(copy)
            copy.meta["val"] = self._evaluate(copy)
        return copy

    def _move_to_end(self, node: torch.fx.Node) -> None:
        last = next(iter(reversed(self.graph.nodes)))
        if last is not node:
            last.append(node)

    def _evaluate(self, node: torch.fx.Node) -> Any:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), _value)
        return node.target(*args, **kwargs)

    def _in_order(self, arg: Any, order: torch.memory_format) -> Any:
        """`arg`, or a copy of it where its dimensions have another order in memory."""
        value = _value(arg)
        is_tensor = isinstance(arg, torch.fx.Node) and isinstance(value, torch.Tensor)
        if not is_tensor or (order == torch.channels_last and value.dim() != 4):
            return arg
        if value.is_contiguous(memory_format=order):
            return arg
        if (arg, order) not in self.ordered:
            clone = self.graph.call_function(aten.clone.default, (arg,), {"memory_format": order})
            clone.meta["val"] = self._evaluate(clone)
            self.ordered[arg, order] = clone
        return self.ordered[arg, order]

    def _as_before(self, arg: Any) -> Any:
        """An output with the strides that eager's has."""
        copy = self.copies[arg] if isinstance(arg, torch.fx.Node) else arg
        before, now = _value(arg), _value(copy)
        if not isinstance(before, torch.Tensor) or before.stride() == now.stride():
            return copy
        for order in (torch.contiguous_format, torch.channels_last):
            ordered = self._in_order(copy, order)
            if _value(ordered).stride() == before.stride():
                return ordered
        raise ValueError(f"output {arg} has strides of its own")


def channels_last(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph of the same results, strides included, where all convolutions of `module` are better
    off with channels last; else `module`. REQUIRES: its device is a GPU.
    """
    convolutions = [node for node in module.graph.nodes if _is_convolution(node)]
    if not convolutions or not all(map(_suits, convolutions)):
        return module
    if not _has_fixed_sizes(module.graph) or _has(module, _OF_STRIDES):
        return module
    mode = _value(convolutions[0]).fake_mode
    try:
        with mode, torch.no_grad():
            return _Rewrite(module).run()
    except Exception as error:  # operators' own, of any kind: what worked before still does
        _LOG.debug("channels stay where they are: %s", error)
        return module


def _has(module: torch.fx.GraphModule, packets: Sequence[Any]) -> bool:
    return any(getattr(node.target, "overloadpacket", None) in packets for node in module.graph.nodes)
