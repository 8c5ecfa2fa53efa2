"""Gradients that come for outputs whose elements share memory, such as windows of a tensor.

AOTAutograd gives each gradient the strides of its output, and sees of outputs that share memory only those
that `expand` makes: of others, such as `unfold`'s, a gradient would be copied into memory where its own
elements overwrite each other.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._functorch._aot_autograd import schemas

from kiln_torch.replaced import replaced

_NO_OVERLAP = 0  # of torch._debug_has_internal_overlap; 1: some, 2: it cannot tell


def contiguous_tangents() -> AbstractContextManager[None]:
    """While a graph is traced, gradients of outputs that may share memory are expected contiguous. As `replaced`."""
    meta = getattr(schemas, "MemoryFormatMeta", None)

    def make(original: Callable[..., Any]) -> staticmethod:
        def from_tensor(t: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            found = original(t, *args, **kwargs)
            has_strides = getattr(found, "stride", None) is not None
            if has_strides and torch._debug_has_internal_overlap(t) != _NO_OVERLAP:
                return meta(memory_format=torch.contiguous_format)
            return found

        return staticmethod(from_tensor)

    return replaced(meta, "from_tensor", make)
