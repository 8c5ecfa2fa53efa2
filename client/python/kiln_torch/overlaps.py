"""Where arguments lie that share memory, of functions that write to their arguments.

AOTAutograd computes with the memory that such arguments share, and each is the view of it that it was when
the function was traced. torch guards sizes and strides, and of a view's place nothing: the next window of
the same buffer would be taken for the first, and arguments that share memory only in a later call for some that
share none. The former is guarded here. The latter no guard of torch's can say, so that calls look for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._C._dynamo.guards import compute_overlapping_tensors
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import TensorProperty, TensorPropertySource
from torch._guards import Source, StorageOverlap, TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

from kiln_torch import _kiln
from kiln_torch.graphs import next_name
from kiln_torch.runner import fall_back
from kiln_torch.settings import Settings
from kiln_torch.shortcuts import called_by

# Of more views of one storage than this, each call would compare every two: a flat buffer of parameters
# has views by the hundred, and those lie apart.
_MOST_COMPARED = 64


def _sharing(inputs: Sequence[Any]) -> list[list[int]]:
    """Positions of the tensors of each storage that has two or more."""
    groups: dict[StorageWeakRef, list[int]] = {}
    for i, value in enumerate(inputs):
        if type(value) in (torch.Tensor, torch.nn.Parameter, FakeTensor) and (
            value.layout == torch.strided
        ):
            groups.setdefault(StorageWeakRef(value.untyped_storage()), []).append(i)
    return [group for group in groups.values() if len(group) > 1]


def shared_places(inputs: Sequence[Any]) -> list[list[tuple[int, str]]]:
    """Positions, with where each begins, of the inputs that share memory: what torch's key of a traced
    graph leaves out."""
    return [[(i, str(inputs[i].storage_offset())) for i in group] for group in _sharing(inputs)]


def _writes_arguments(context: TracingContext) -> bool:
    metadata = context.fw_metadata
    return metadata is None or any(info.mutates_data for info in metadata.input_info)


def guard_overlaps(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    graph: Callable[..., Any],
    settings: Settings,
) -> Callable[..., Any]:
    """`graph`, or what to give Dynamo in its place. To call once AOTAutograd has traced `module`, while Dynamo
    compiles it. A call whose arguments share memory that did not when it was traced runs `module` eager."""
    context = TracingContext.try_get()
    if context is None or not _writes_arguments(context):
        return graph
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    sources = [getattr(node, "_dynamo_source", None) for node in placeholders]
    groups = [-1] * len(example_inputs)
    for number, group in enumerate(_sharing(example_inputs)):
        known = [i for i in group if i < len(sources) and sources[i] is not None]
        if 1 < len(known) <= _MOST_COMPARED:
            _guard(context, [sources[i] for i in known], [example_inputs[i] for i in known])
        elif _lie_apart([example_inputs[i] for i in group]):
            continue
        for i in group:
            groups[i] = number
    # What precompile saves is torch's own function.
    if torch._dynamo.config.caching_precompile:
        return graph
    name = next_name("overlapping")

    def eager(arguments: tuple[Any, ...], i: int, j: int) -> Any:
        both = f"{placeholders[i].target} and {placeholders[j].target}"
        reason = f"arguments {both} share memory, which they did not when the function was traced"
        return fall_back(module, name, reason, settings)(*arguments)

    written = _written(context, len(example_inputs))
    return called_by(_kiln.Apart(graph, eager, written, tuple(groups)), graph)


def _written(context: TracingContext, count: int) -> tuple[bool, ...]:
    """Which of the arguments the function writes to; all where that is not known."""
    metadata = context.fw_metadata
    if metadata is None or len(metadata.input_info) != count:
        return (True,) * count
    return tuple(info.mutates_data for info in metadata.input_info)


def _lie_apart(views: list[torch.Tensor]) -> bool:
    """Whether the views of a storage begin each after another's end, in the sizes at hand."""
    ends = 0
    reached = []
    for view in views:
        numbers = [_at_hand(n) for n in (view.storage_offset(), *view.shape, *view.stride())]
        if None in numbers:
            return False
        begin, sizes, strides = numbers[0], numbers[1 : view.dim() + 1], numbers[view.dim() + 1 :]
        if 0 not in sizes:
            last = sum((n - 1) * stride for n, stride in zip(sizes, strides, strict=True))
            bytes_each = view.element_size()
            reached.append((begin * bytes_each, (begin + last + 1) * bytes_each))
    for begin, end in sorted(reached):
        if begin < ends:
            return False
        ends = end
    return True


def _at_hand(number: Any) -> int | None:
    return number.node.hint if isinstance(number, torch.SymInt) else number


def _overlapping(context: TracingContext, values: list[torch.Tensor]) -> set[int]:
    """By the symbolic sizes at hand, which the question does not fix: each call asks it anew."""
    symbolic = any(
        isinstance(number, torch.SymInt)
        for value in values
        for number in (*value.shape, *value.stride(), value.storage_offset())
    )
    shape_env = context.fake_mode.shape_env if context.fake_mode is not None else None
    with shape_env.suppress_guards() if shape_env is not None else nullcontext():
        return compute_overlapping_tensors(values, symbolic=symbolic)


def _guard(context: TracingContext, sources: list[Source], values: list[torch.Tensor]) -> None:
    overlapping = _overlapping(context, values)
    apart = [source for i, source in enumerate(sources) if i not in overlapping]
    relation = StorageOverlap([sources[i] for i in overlapping], apart)
    context.guards_context.aotautograd_guards.append(relation)
    for i in overlapping:
        place = TensorPropertySource(sources[i], TensorProperty.STORAGE_OFFSET)
        context.guards_context.dynamo_guards.add(place.make_guard(GuardBuilder.EQUALS_MATCH))
