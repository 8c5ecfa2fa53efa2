"""torch's distance operators, taken apart into differences and one reduction, which become one kernel.

The formulas are those of ATen's CPU kernels (aten/src/ATen/native/cpu/DistanceOpsKernel.cpp).
"""

from __future__ import annotations

import math

import torch

aten = torch.ops.aten
Tensor = torch.Tensor

_USES_PRODUCT, _NEVER_A_PRODUCT = 1, 2  # compute_mode of cdist
_MOST_ROWS_WITHOUT_PRODUCT = 25


def _norm(difference: Tensor, p: float) -> Tensor:
    """Over the last dimension."""
    magnitude = difference.abs()
    if p == 0:
        return (difference != 0).to(difference.dtype).sum(-1)
    if p == 1:
        return magnitude.sum(-1)
    if p == 2:
        return (difference * difference).sum(-1).sqrt()
    if math.isinf(p):
        return magnitude.amax(-1)
    return magnitude.pow(p).sum(-1).pow(1 / p)


def _norm_backward(grad: Tensor, difference: Tensor, norm: Tensor, p: float) -> Tensor:
    """The gradient of each difference; `grad` and `norm` have a last dimension of 1."""
    if p == 0:
        return torch.zeros_like(difference * grad)
    if p == 1:
        return grad * difference.sign()
    magnitude = difference.abs()
    if math.isinf(p):
        is_greatest = 1 - (magnitude - norm).abs().ceil().clamp(max=1)
        return grad * difference.sign() * is_greatest
    if p == 2:
        slope = difference / norm
    elif p < 2:
        slope = difference.sign() * magnitude.pow(p - 1) / norm.pow(p - 1)
    else:
        slope = difference * magnitude.pow(p - 2) / norm.pow(p - 1)
    is_flat = norm == 0
    if p < 1:
        is_flat = is_flat | (difference == 0)
    return torch.where(is_flat, 0.0, grad * slope)


def cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """[.., m, d] and [.., n, d] give [.., m, n]."""
    rows = max(x1.shape[-2], x2.shape[-2])
    is_large = rows > _MOST_ROWS_WITHOUT_PRODUCT and compute_mode != _NEVER_A_PRODUCT
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    if x1.shape[-1] == 0 or 0 in (*batch, x1.shape[-2], x2.shape[-2]):
        return x1.new_zeros((*batch, x1.shape[-2], x2.shape[-2]))
    if p == 2 and (compute_mode == _USES_PRODUCT or is_large):
        return aten._euclidean_dist(
            x1.expand(*batch, *x1.shape[-2:]), x2.expand(*batch, *x2.shape[-2:])
        )
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    """That of x1; of x2 it is the same with both exchanged."""
    batch = cdist.shape[:-2]
    if cdist.numel() == 0 or x1.numel() == 0:
        return x1.new_zeros((*batch, *x1.shape[-2:]))
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    slopes = _norm_backward(grad.unsqueeze(-1), difference, cdist.unsqueeze(-1), p)
    return slopes.sum(-2)


def _pairs(rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The pairs i < j of `rows` numbers in row-major order."""
    k = torch.arange(rows * (rows - 1) // 2, dtype=torch.float64, device=device)
    half = rows - 0.5
    # 1 less under the root: a rounded one must not lie above.
    i = (half - (half * half - 2 * k - 1).sqrt()).floor()
    j = k - rows * i + i * (i + 1) / 2 + i + 1
    return i.to(torch.int64), j.to(torch.int64)


def pdist_forward(x: Tensor, p: float = 2) -> Tensor:
    """[n, d] gives the n * (n - 1) / 2 distances of its rows."""
    if x.shape[0] < 2 or x.shape[1] == 0:
        return x.new_zeros((x.shape[0] * (x.shape[0] - 1) // 2,))
    i, j = _pairs(x.shape[0], x.device)
    return _norm(x[i] - x[j], p)


def pdist_backward(grad: Tensor, x: Tensor, p: float, pdist: Tensor) -> Tensor:
    if x.shape[0] < 2 or x.shape[1] == 0:
        return torch.zeros_like(x)
    i, j = _pairs(x.shape[0], x.device)
    slopes = _norm_backward(grad.unsqueeze(-1), x[i] - x[j], pdist.unsqueeze(-1), p)
    return torch.zeros_like(x).index_add(0, i, slopes).index_add(0, j, -slopes)


DISTANCES = {
    aten._cdist_forward.default: cdist_forward,
    aten._cdist_backward.default: cdist_backward,
    aten._pdist_forward.default: pdist_forward,
    aten._pdist_backward.default: pdist_backward,
}
