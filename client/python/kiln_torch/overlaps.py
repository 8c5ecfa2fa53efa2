"""Guards on where arguments lie that share memory, of functions that write to their arguments.

AOTAutograd computes with the memory that such arguments share, and each is the view of it that it was when
the function was traced. torch guards sizes and strides, and of a view's place nothing: the next window of
the same buffer would be taken for the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._C._dynamo.guards import compute_overlapping_tensors
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import TensorProperty, TensorPropertySource
from torch._guards import Source, StorageOverlap, TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

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


def guard_overlaps(module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """To call once AOTAutograd has traced the graph, while Dynamo compiles it."""
    context = TracingContext.try_get()
    if context is None or not _writes_arguments(context):
        return
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    sources = [getattr(node, "_dynamo_source", None) for node in placeholders]
    for group in _sharing(example_inputs):
        known = [i for i in group if i < len(sources) and sources[i] is not None]
        if 1 < len(known) <= _MOST_COMPARED:
            _guard(context, [sources[i] for i in known], [example_inputs[i] for i in known])


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
