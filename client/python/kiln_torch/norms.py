"""torch's norms of vectors, and the gradient of weights that are normalized by them, taken apart into
reductions, which fuse with what uses them.

The formulas are those of ATen's CPU kernels (aten/src/ATen/native/cpu/ReduceOpsKernel.cpp and
WeightNormKernel.cpp), which compute in float32 for 16-bit elements; of a lone element the norm is its
magnitude as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false

Tensor = torch.Tensor


def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Of real floats over `dim`, or over all; in `dtype`, or in that of `x`."""
    dims = list(dim) if dim and x.dim() > 0 else list(range(x.dim()))
    count = math.prod(x.shape[d] for d in dims)
    has_identity = ord >= 0 and not math.isinf(ord)
    result = dtype or x.dtype
    if not (x.is_floating_point() and result.is_floating_point):
        return NotImplemented
    if not has_identity and guard_or_false(count == 0):  # an error of eager's own
        return NotImplemented
    x = x.to(result)
    if x.element_size() < torch.float32.itemsize:
        x = x.float()
    return _norm(x, ord, dims, keepdim, guard_or_false(count == 1)).to(result)


def _norm(x: Tensor, ord: float, dims: list[int], keepdim: bool, is_lone: bool) -> Tensor:
    if ord == 0:
        return (x != 0).to(x.dtype).sum(dims, keepdim)
    if ord == math.inf or is_lone:
        return x.abs().amax(dims, keepdim)
    if ord == -math.inf:
        return x.abs().amin(dims, keepdim)
    if ord == 1:
        return x.abs().sum(dims, keepdim)
    if ord == 2:
        return (x * x).sum(dims, keepdim).sqrt()
    return x.abs().pow(ord).sum(dims, keepdim).pow(1 / ord)


def _sum_but(x: Tensor, dim: int) -> Tensor:
    """Over all dimensions but `dim`, which are kept with size 1."""
    others = [d for d in range(x.dim()) if d != dim]
    return x.sum(others, keepdim=True) if others else x  # no dimensions would be all of them


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """v * (g / norms), and the norms of `v` over all dimensions but `dim`, at least in float32."""
    wide = v.to(torch.promote_types(v.dtype, torch.float32))
    norms = _sum_but(wide * wide, dim).sqrt()
    return (wide * (g.to(wide.dtype) / norms)).to(v.dtype), norms


def weight_norm_backward(
    gradient: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Gradients of `v` and `g` from that of v * (g / norms), where `norms` are those of `v` over all
    dimensions but `dim`."""
    at_least_float = torch.promote_types(v.dtype, torch.float32)
    wide, direction, norm = (each.to(at_least_float) for each in (gradient, v, norms))
    along = _sum_but(wide * direction, dim)
    across = wide - direction * (along / (norm * norm))
    return (g.to(at_least_float) / norm * across).to(v.dtype), (along / norm).to(g.dtype)
