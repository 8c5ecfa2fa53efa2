"""torch's embedding bags, taken apart into reads and sums at positions that tensors hold.

A bag's number is found for each index, so that bags of any length are one loop over the indices.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor

_SUM, _MEAN, _MAX = 0, 1, 2


def _bag_numbers(indices: Tensor, offsets: Tensor, bags: int) -> Tensor:
    """Of each index: the last bag that begins at it or before."""
    begins = torch.zeros(indices.shape[0] + 1, dtype=torch.int64, device=indices.device)
    ones = torch.ones(bags, dtype=torch.int64, device=indices.device)
    begins = begins.index_add(0, offsets[:bags].to(torch.int64), ones)
    return begins.cumsum(0)[:-1] - 1


def _masked(rows: Tensor, indices: Tensor, padding_idx: int) -> Tensor:
    """0 for the indices that count nothing."""
    if padding_idx < 0:
        return rows
    return torch.where((indices != padding_idx).unsqueeze(1), rows, 0)


def _add_rows(rows: Tensor, places: Tensor, count: int) -> Tensor:
    zeros = torch.zeros((count, rows.shape[1]), dtype=rows.dtype, device=rows.device)
    return zeros.index_add(0, places, rows)


def _has_fast_path(weight: Tensor, per_sample_weights: Tensor | None, padding_idx: int) -> bool:
    """In which ATen's CPU kernel does not say which bag an index is in."""
    if weight.dtype == torch.float64 or weight.stride(1) != 1 or padding_idx >= 0:
        return False
    return per_sample_weights is None or per_sample_weights.stride(0) == 1


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
    *,
    is_forward_only: bool = False,
) -> Any:
    """Bags [b] of rows of `weight` [n, d]: (output [b, d], offset2bag, bag_size, max_indices)."""
    bags = offsets.shape[0] - int(include_last_offset)
    if mode == _MAX or indices.shape[0] == 0 or bags == 0 or weight.numel() == 0:
        return NotImplemented
    bag = _bag_numbers(indices, offsets, bags)
    rows = _masked(weight.index_select(0, indices), indices, padding_idx)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    arithmetic = torch.promote_types(weight.dtype, torch.float32)
    output = _add_rows(rows.to(arithmetic), bag, bags)
    if mode == _MEAN:
        ones = torch.ones((indices.shape[0], 1), dtype=torch.int64, device=indices.device)
        sizes = _add_rows(_masked(ones, indices, padding_idx), bag, bags).squeeze(1)
        output = output / sizes.clamp(min=1).unsqueeze(1)
    else:
        # As ATen's CPU kernel, which counts nothing here.
        sizes = torch.zeros(offsets.shape[0] if is_forward_only else bags, dtype=offsets.dtype)
    sizes = sizes.to(offsets.dtype)
    knows_bags = mode == _MEAN or not _has_fast_path(weight, per_sample_weights, padding_idx)
    bag = bag.to(offsets.dtype) if knows_bags else offsets.new_zeros((0,))
    return output.to(weight.dtype), bag, sizes, sizes.clone()


def _dense_backward(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """The gradient of the weight, [num_weights, d]."""
    if mode == _MAX or scale_grad_by_freq or indices.shape[0] == 0 or grad.numel() == 0:
        return NotImplemented
    rows = grad.index_select(0, offset2bag)
    if mode == _MEAN:
        rows = rows / bag_size.clamp(min=1).index_select(0, offset2bag).unsqueeze(1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    return _add_rows(_masked(rows, indices, padding_idx), indices, num_weights)


def _backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """As _dense_backward; the bags may have to be found again."""
    if sparse:
        return NotImplemented
    if offset2bag.shape[0] == 0:
        offset2bag = _bag_numbers(indices, offsets, offsets.shape[0])
    return _dense_backward(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq,
        mode, per_sample_weights, padding_idx,
    )  # fmt: skip


def _per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    if indices.shape[0] == 0 or offset2bag.shape[0] == 0 or weight.numel() == 0:
        return NotImplemented
    products = grad.index_select(0, offset2bag) * weight.index_select(0, indices)
    return _masked(products, indices, padding_idx).sum(1)


EMBEDDING_BAGS = {
    aten._embedding_bag.default: _embedding_bag,
    aten._embedding_bag_forward_only.default: functools.partial(
        _embedding_bag, is_forward_only=True
    ),
    aten._embedding_bag_backward.default: _backward,
    aten._embedding_bag_dense_backward.default: _dense_backward,
    aten._embedding_bag_per_sample_weights_backward.default: _per_sample_weights_backward,
}
