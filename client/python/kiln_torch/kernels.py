"""The Python kernels that torch gives its own operators, exchanged while a graph is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._C import DispatchKey

# Of each overload the kernel at a key; None for no Python kernel there.
Kernels = Mapping[torch._ops.OpOverload, Mapping[DispatchKey, Callable[..., Any] | None]]


@contextlib.contextmanager
def exchanged(kernels: Kernels) -> Iterator[None]:
    """Not for two threads at a time: dynamo's lock is held where backends run.

    What it sets aside is torch's own; a torch that has it elsewhere traces as it would anyway."""
    if not all(hasattr(op, "py_kernels") and hasattr(op, "_dispatch_cache") for op in kernels):
        yield
        return
    saved = {op: dict(op.py_kernels) for op in kernels}
    for op, by_key in kernels.items():
        for key, kernel in by_key.items():
            if kernel is None:
                op.py_kernels.pop(key, None)
            else:
                op.py_kernels[key] = kernel
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, before in saved.items():
            op.py_kernels.clear()
            op.py_kernels.update(before)
            op._dispatch_cache.clear()
