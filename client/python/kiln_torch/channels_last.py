"""Graphs with convolutions on a GPU, with what these read and give channels last.

cuDNN's fast convolutions take images and weights in that order of dimensions: of others it makes
copies before and after each call. Once the first convolution has its operands so, eager's rules hand
the order on from operator to operator. Of what is trained the graph of both passes is written so,
before it is parted: what the forward pass keeps then has one order on both sides.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy

aten = torch.ops.aten

_LOG = logging.getLogger("kiln_torch")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Operators whose arguments name strides: what they mean depends on how their input lies in memory.
_OF_STRIDES = (aten.as_strided, aten.set_, aten.as_strided_scatter, aten.as_strided_copy)


# Convolutions: how many of the first arguments are to be in order, and which one has the groups.
_CONVOLUTIONS = {aten.convolution.default: (2, 8), aten.convolution_backward.default: (3, 9)}
# What torch's partitioner asks of every node of a region, and a place in the user's source.
_OF_REGION = ("ac_graph_id", "custom", "partitioner_tag", "recompute", "stack_trace")


def _is_convolution(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and node.target in _CONVOLUTIONS


def _value(arg: Any) -> Any:
    return arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg


def _suits(node: torch.fx.Node) -> bool:
    """Whether that convolution is faster so: of images, without groups."""
    count, groups = _CONVOLUTIONS[node.target]
    operands = [_value(arg) for arg in node.args[:count]]
    return node.args[groups] == 1 and all(x.dim() == 4 and x.dtype in _DTYPES for x in operands)


def _is_in_order(value: Any) -> bool:
    """Whether an image or a weight, or all among a convolution's results, have channels last."""
    images = [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor) and x.dim() == 4]
    return all(x.is_contiguous(memory_format=torch.channels_last) for x in images)


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
            output = self.graph.output(tuple(outputs) if isinstance(node.args[0], tuple) else outputs)
            output.meta = dict(node.meta)
            return output
        copy = self.graph.node_copy(node, self.copies.__getitem__)
        if node.op != "call_function":
            return copy
        if _is_convolution(node):
            count, _ = _CONVOLUTIONS[node.target]
            operands = [self._operand(arg, copy) for arg in copy.args[:count]]
            copy.args = (*operands, *copy.args[count:])
            self._move_to_end(copy)
        try:
            copy.meta["val"] = self._evaluate(copy)
        except (RuntimeError, ValueError):
            # A view that this order in memory does not allow.
            inputs = {
                arg: self._in_order(arg, torch.contiguous_format, copy) for arg in copy.all_input_nodes
            }
            copy.args, copy.kwargs = torch.fx.map_arg((copy.args, copy.kwargs), inputs.__getitem__)
            self._move_to_end(copy)
            copy.meta["val"] = self._evaluate(copy)
        if _is_convolution(node) and not _is_in_order(copy.meta["val"]):
            raise ValueError(f"{node} is not computed with channels last")
        return copy

    def _move_to_end(self, node: torch.fx.Node) -> None:
        last = next(iter(reversed(self.graph.nodes)))
        if last is not node:
            last.append(node)

    def _evaluate(self, node: torch.fx.Node) -> Any:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), _value)
        return node.target(*args, **kwargs)

    def _call(self, like: torch.fx.Node, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        """A further node, of the region that `like` is in."""
        node = self.graph.call_function(target, args, kwargs)
        node.meta = {name: like.meta[name] for name in _OF_REGION if name in like.meta}
        node.meta["val"] = self._evaluate(node)
        return node

    def _operand(self, arg: torch.fx.Node, convolution: torch.fx.Node) -> torch.fx.Node:
        """Image, weight or gradient of a convolution, with channels last."""
        ordered = self._in_order(arg, torch.channels_last, convolution)
        is_given = arg.op == "placeholder" or arg is convolution.args[1]
        if convolution.target == aten.convolution.default and is_given and ordered is not arg:
            # The backward pass reads it, too, and keeping it is what keeping `arg` would cost.
            ordered.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
        return ordered

    def _in_order(self, arg: Any, order: torch.memory_format, like: torch.fx.Node) -> Any:
        """`arg`, or a copy of it where its dimensions have another order in memory."""
        value = _value(arg)
        is_tensor = isinstance(arg, torch.fx.Node) and isinstance(value, torch.Tensor)
        if not is_tensor or (order == torch.channels_last and value.dim() != 4):
            return arg
        if value.is_contiguous(memory_format=order):
            return arg
        if (arg, order) not in self.ordered:
            self.ordered[arg, order] = self._call(like, aten.clone.default, arg, memory_format=order)
        return self.ordered[arg, order]

    def _as_before(self, arg: Any) -> Any:
        """An output with the strides that eager's has."""
        copy = self.copies[arg] if isinstance(arg, torch.fx.Node) else arg
        before, now = _value(arg), _value(copy)
        if not isinstance(before, torch.Tensor) or before.stride() == now.stride():
            return copy
        for order in (torch.contiguous_format, torch.channels_last):
            ordered = self._viewed(self._in_order(copy, order, copy), before)
            if _value(ordered).stride() == before.stride():
                return ordered
        raise ValueError(f"output {arg} has strides of its own")

    def _viewed(self, node: torch.fx.Node, before: torch.Tensor) -> torch.fx.Node:
        """`node`, or a view of it where only dimensions of size 1 have other strides than `before`:
        the gradient of a 1 x 1 convolution's weight."""
        now = _value(node)
        if before.stride() == now.stride():
            return node
        longer = [i for i, size in enumerate(before.shape) if size != 1]
        if any(before.stride(i) != now.stride(i) for i in longer):
            return node
        view = aten.view.default
        inner = self._call(node, view, node, [before.shape[i] for i in longer])
        return self._call(node, view, inner, list(before.shape))


def channels_last(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph of the same results, strides included, where all convolutions of `module` are better
    off with channels last; else `module`. It may be that of inference or, before it is parted, of both
    passes. REQUIRES: its device is a GPU.
    """
    convolutions = [node for node in module.graph.nodes if _is_convolution(node)]
    if not convolutions or not all(map(_suits, convolutions)):
        return module
    if not _has_fixed_sizes(module.graph) or _has(module, _OF_STRIDES):
        return module
    mode = _value(convolutions[0].args[0]).fake_mode  # its result may be several
    try:
        with mode, torch.no_grad():
            return _Rewrite(module).run()
    except Exception as error:  # operators' own, of any kind: what worked before still does
        _LOG.debug("channels stay where they are: %s", error)
        return module


def _has(module: torch.fx.GraphModule, packets: Sequence[Any]) -> bool:
    return any(getattr(node.target, "overloadpacket", None) in packets for node in module.graph.nodes)
