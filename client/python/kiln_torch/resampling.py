"""The kernels that keep torch's resampling operators whole while a graph is traced.

Where Python dispatches, torch takes them apart above autograd, into reads at positions that tensors
hold; their gradient is a scatter, which the loop IR cannot say and which takes eager's time several
times over. As one operator each has a gradient of its own, which the server lowers as a gather.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch._decomp.decompositions import upsample_compute_output_size
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import guard_or_false

from kiln_torch.kernels import Kernels

aten = torch.ops.aten

_WHOLE = (
    aten.upsample_nearest1d,
    aten.upsample_nearest2d,
    aten.upsample_nearest3d,
    aten._upsample_nearest_exact1d,
    aten._upsample_nearest_exact2d,
    aten._upsample_nearest_exact3d,
    aten.upsample_linear1d,
    aten.upsample_bilinear2d,
    aten.upsample_trilinear3d,
    aten.upsample_bicubic2d,
)
# Only their gradients' meta functions are exchanged.
_ANTIALIASED = (aten._upsample_bilinear2d_aa, aten._upsample_bicubic2d_aa)
_ABOVE = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


def _vector_form(
    op: torch._ops.OpOverload,
    taken_apart: Callable[..., torch.Tensor] | None,
    x: torch.Tensor,
    output_size: Sequence[int] | None,
    *rest: Any,
) -> torch.Tensor:
    """`op`.vec by `op`.default; `rest` is align_corners, but for nearest, and the scale factors.

    Of no elements it is taken apart all the same: some meta functions refuse these."""
    if taken_apart is not None and guard_or_false(x.numel() == 0):
        return taken_apart(x, output_size, *rest)
    *align_corners, factors = rest
    sizes = upsample_compute_output_size(x.size(), output_size, factors)
    return op(x, sizes, *align_corners, *(factors or [None] * len(sizes)))


def _gradient_meta(
    grad: torch.Tensor, output_size: Sequence[int], input_size: Sequence[int], *_: Any, **__: Any
) -> torch.Tensor:
    """torch has its own for some, which know no symbolic sizes."""
    form = suggest_memory_format(grad)
    return grad.new_empty(input_size).to(memory_format=form)


@functools.lru_cache(maxsize=1)
def _add_metas() -> None:
    for packet in (*_WHOLE, *_ANTIALIASED):
        backward = getattr(aten, packet.__name__ + "_backward").default
        if DispatchKey.Meta not in backward.py_kernels:
            backward.py_impl(DispatchKey.Meta)(_gradient_meta)


def resampling_kept_whole() -> Kernels:
    _add_metas()
    kernels: dict[torch._ops.OpOverload, dict[DispatchKey, Callable[..., Any] | None]] = {}
    for packet in _WHOLE:
        kernels[packet.default] = dict.fromkeys(_ABOVE)
        torchs = getattr(packet.vec, "py_kernels", {})
        kernels[packet.vec] = {
            key: functools.partial(_vector_form, packet.default, torchs.get(key)) for key in _ABOVE
        }
    return kernels
