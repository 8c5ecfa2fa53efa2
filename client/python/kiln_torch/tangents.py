"""Gradients that come for outputs whose elements share memory, such as windows of a tensor.

AOTAutograd gives each gradient the strides of its output, and sees of outputs that share memory only those
that `expand` makes: of others, such as `unfold`'s, a gradient would be copied into memory where its own
elements overwrite each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._functorch._aot_autograd import schemas

_NO_OVERLAP = 0  # of torch._debug_has_internal_overlap; 1: some, 2: it cannot tell


@contextlib.contextmanager
def contiguous_tangents() -> Iterator[None]:
    """While a graph is traced, gradients of outputs that may share memory are expected contiguous. Not for two
    threads at a time: dynamo's lock is held where backends run."""
    meta = getattr(schemas, "MemoryFormatMeta", None)
    if meta is None:  # a torch that has it elsewhere traces as it would anyway
        yield
        return
    original = meta.from_tensor

    def from_tensor(t: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = original(t, *args, **kwargs)
        has_strides = getattr(found, "stride", None) is not None
        if has_strides and torch._debug_has_internal_overlap(t) != _NO_OVERLAP:
            return meta(memory_format=torch.contiguous_format)
        return found

    meta.from_tensor = staticmethod(from_tensor)
    try:
        yield
    finally:
        meta.from_tensor = staticmethod(original)
