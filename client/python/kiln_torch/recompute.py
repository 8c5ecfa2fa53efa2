"""How the graph of both passes is parted: which values the backward pass computes again instead of
keeping them.

torch's partitioner keeps what a product gives. For the scores of an attention, which are many times
larger than what they are a product of, that costs more than to compute them again: here they, their
softmax and its dropout are computed again, from one maximum and one sum a row and from the seed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._guards import detect_fake_mode
from torch.utils.checkpoint import CheckpointPolicy

from kiln_torch.channels_last import channels_last
from kiln_torch.devices import traced_device

aten = torch.ops.aten
Node = torch.fx.Node

_LIBRARY = torch.library.Library("kiln", "DEF")
# Which elements a dropout of `p` keeps of `like`: the same in every call with `seed` and `stream`.
_LIBRARY.define("keep(Tensor like, Tensor seed, int stream, float p) -> Tensor")


_WORD = 2**32 - 1


def _philox(seed: int, stream: int, place: torch.Tensor) -> torch.Tensor:
    """Word 0 of Philox4x32-10 with the seed as key and the counter (place, stream)."""
    c0, c1 = place & _WORD, (place >> 32) & _WORD
    c2, c3 = torch.full_like(place, stream & _WORD), torch.full_like(place, (stream >> 32) & _WORD)
    key0, key1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(10):
        # Products of 64 bits, which wrap.
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = ((b >> 32) & _WORD) ^ c1 ^ key0, b & _WORD
        c2, c3 = ((a >> 32) & _WORD) ^ c3 ^ key1, a & _WORD
        key0, key1 = (key0 + 0x9E3779B9) & _WORD, (key1 + 0xBB67AE85) & _WORD
    return c0


def _keep(like: torch.Tensor, seed: torch.Tensor, stream: int, p: float) -> torch.Tensor:
    """What compiler/lowering/random.cc computes, bit by bit: where one of the two passes runs eager
    and the other does not, both have one mask."""
    place = torch.arange(like.numel()).view(like.shape)
    uniform = (_philox(int(seed), stream, place) & (2**24 - 1)).to(torch.float32) * 2.0**-24
    return uniform < torch.tensor(1 - p, dtype=torch.float32)


_LIBRARY.impl("keep", _keep, "CompositeExplicitAutograd")


def _keep_of_no_data(like: torch.Tensor, seed: torch.Tensor, stream: int, p: float) -> torch.Tensor:
    return torch.empty(like.shape, dtype=torch.bool, device=like.device)


# register_fake would look through all modules for the one that calls it: 25 ms of every import.
_LIBRARY.impl("keep", _keep_of_no_data, "Meta")


_PRODUCTS = (aten.bmm.default, aten.mm.default, aten.baddbmm.default)
_SEARCH = 64  # nodes from the scores to what they are multiplied with, at most


def _size(node: Node) -> int:
    """Elements, at the hints of symbolic sizes; 0 for what is no tensor."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    size = 1
    for length in value.shape:
        size *= length.node.hint or 1 if isinstance(length, torch.SymInt) else length
    return size


def _descendants(nodes: Iterable[Node]) -> set[Node]:
    found: set[Node] = set()
    left = list(nodes)
    while left:
        for user in left.pop().users:
            if user not in found:
                found.add(user)
                left.append(user)
    return found


def _region(scores: Node, backward: set[Node]) -> list[Node] | None:
    """What follows from the product `scores` in the forward pass, up to the next product, in order;
    None where that is no attention, or where the graph gives some of it to its caller."""
    region = {scores}
    left = [scores]
    products = False
    while left:
        for user in left.pop().users:
            if user.op == "output":
                return None
            if user in backward or user in region:
                continue
            if user.target in _PRODUCTS:
                products = True
                continue
            region.add(user)
            left.append(user)
        if len(region) > _SEARCH:
            return None
    is_attention = products and any(n.target is aten._softmax.default for n in region)
    if not is_attention or any("recompute" in n.meta for n in region):
        return None
    return [n for n in scores.graph.nodes if n in region]


class _Rewriter:
    """Takes softmax and dropout of a graph's regions apart into what can be computed again."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._graph = graph
        self._mode = detect_fake_mode([n.meta.get("val") for n in graph.nodes])
        self._seed: Node | None = None
        self._streams = 0

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        node = self._graph.call_function(target, args, kwargs)
        fakes = torch.fx.node.map_arg((args, kwargs), lambda arg: arg.meta["val"])
        with self._mode:
            node.meta["val"] = target(*fakes[0], **fakes[1])
        return node

    def softmax(self, node: Node) -> list[Node]:
        x, dim, _ = node.args
        dtype = node.meta["val"].dtype
        arithmetic = torch.float64 if dtype == torch.float64 else torch.float32
        made = []

        def call(target: Any, *args: Any, **kwargs: Any) -> Node:
            made.append(self._call(target, *args, **kwargs))
            return made[-1]

        with self._graph.inserting_before(node):
            if x.meta["val"].dtype != arithmetic:
                x = call(aten._to_copy.default, x, dtype=arithmetic)
            weights = call(
                aten.exp.default, call(aten.sub.Tensor, x, call(aten.amax.default, x, [dim], True))
            )
            total = call(aten.sum.dim_IntList, weights, [dim], True)
            weights = call(aten.mul.Tensor, weights, call(aten.reciprocal.default, total))
            if dtype != arithmetic:
                weights = call(aten._to_copy.default, weights, dtype=dtype)
        node.replace_all_uses_with(weights)
        self._graph.erase_node(node)
        return made

    def dropout(self, node: Node) -> list[Node]:
        """The nodes in the place of a dropout and of its results."""
        x, p, _ = node.args
        if self._seed is None:
            first = next(n for n in self._graph.nodes if n.op != "placeholder")
            with self._graph.inserting_before(first):
                self._seed = self._call(
                    aten.randint.low, 0, 2**63 - 1, [1], dtype=torch.int64, device="cpu"
                )
        results = {user.args[1]: user for user in node.users}
        with self._graph.inserting_before(node):
            mask = self._call(torch.ops.kiln.keep.default, x, self._seed, self._streams, float(p))
            kept = self._call(aten.mul.Tensor, x, mask)
            scaled = self._call(aten.mul.Tensor, kept, 0.0 if p == 1 else 1 / (1 - p))
        self._streams += 1
        for user, made in ((results.get(0), scaled), (results.get(1), mask)):
            if user is not None:
                user.replace_all_uses_with(made)
                self._graph.erase_node(user)
        self._graph.erase_node(node)
        return [mask, kept, scaled]


def _is_dropout(node: Node) -> bool:
    return node.target is aten.native_dropout.default and node.args[2] is not False


def compute_scores_again(graph: torch.fx.Graph) -> None:
    """Marks in a joint graph what the backward pass computes again, and what the forward pass keeps
    for that."""
    tangents = [n for n in graph.nodes if n.op == "placeholder" and "tangents" in str(n.target)]
    backward = _descendants(tangents)
    rewriter = _Rewriter(graph)
    for scores in [n for n in graph.nodes if n.target in _PRODUCTS and n not in backward]:
        size = _size(scores)
        if size < sum(_size(operand) for operand in scores.all_input_nodes):
            continue
        region = _region(scores, backward)
        if region is None:
            continue
        nodes = []
        for node in region:
            if node.target is aten._softmax.default:
                nodes += rewriter.softmax(node)
            elif _is_dropout(node):
                nodes += rewriter.dropout(node)
            elif not (node.args and _is_result_of_dropout(node)):
                nodes.append(node)
        for node in nodes:
            is_large = _size(node) == size
            node.meta["recompute"] = (
                CheckpointPolicy.MUST_RECOMPUTE if is_large else CheckpointPolicy.MUST_SAVE
            )


# Besides operators of one element each: what makes tensors of numbers alone, and views.
_MAKERS = frozenset(
    (
        aten._to_copy.default,
        aten.arange.start_step,
        aten.expand.default,
        aten.full.default,
        aten.full_like.default,
        aten.scalar_tensor.default,
        aten.slice.Tensor,
        aten.unsqueeze.default,
        aten.view.default,
        torch.ops.prims.convert_element_type.default,
        torch.ops.prims.iota.default,
    )
)


def compute_masks_again(graph: torch.fx.Graph) -> None:
    """Marks what follows from sizes alone, such as masks: it costs less than to read it."""
    fixed: set[Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.SymInt):
            fixed.add(node)
        if not isinstance(node.target, torch._ops.OpOverload) or "recompute" in node.meta:
            continue
        is_number = not isinstance(node.meta.get("val"), torch.Tensor)
        is_cheap = is_number or node.target in _MAKERS or torch.Tag.pointwise in node.target.tags
        is_random = torch.Tag.nondeterministic_seeded in node.target.tags
        if is_cheap and not is_random and all(n in fixed for n in node.all_input_nodes):
            fixed.add(node)
            if not is_number:
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def _is_result_of_dropout(node: Node) -> bool:
    source = node.args[0]
    return isinstance(source, Node) and source.target is aten.native_dropout.default


def partition(
    joint_module: torch.fx.GraphModule, joint_inputs: Any, *, keep_random: bool, **options: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """torch's partitioner for what stays after compute_scores_again. `keep_random`: random operators
    stay what they are, as a GPU's do, whose attention is one operator."""
    device = traced_device(joint_module).type
    if device == "cuda":
        joint_module = channels_last(joint_module)
    if not keep_random:
        compute_masks_again(joint_module.graph)
        if device == "cpu":
            compute_scores_again(joint_module.graph)
        joint_module.recompile()
    return min_cut_rematerialization_partition(joint_module, joint_inputs, **options)


def partitioner(keep_random: bool) -> Callable[..., Any]:
    return functools.partial(partition, keep_random=keep_random)
