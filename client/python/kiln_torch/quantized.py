"""Products with weights of 8 and 4 bits, taken apart into what reads the weights where they lie.

With a few rows, as in decoding, nothing of a weight's size is made: its numbers are widened on the
way into registers. With more rows the weight is widened first, as a product in blocks wants it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
aten = torch.ops.aten

FEW_ROWS = 4  # up to so many no product is blocked
FEW_ROWS_ON_CUDA = 64  # up to so many weights are widened where they are multiplied


def _has_few_rows(x: Tensor) -> bool:
    return isinstance(x.shape[0], int) and x.shape[0] <= FEW_ROWS


def _weight_int8pack_mm(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """x [m, k] @ weight [n, k]^T * scales [n]; summed and scaled in float32, as torch does."""
    exact = weight.float() if _has_few_rows(x) else weight.to(x.dtype).float()
    return ((x.float() @ exact.t()) * scales.float()).to(x.dtype)


def _block() -> int:
    """Rows of the weight that `_convert_weight_to_int4pack_for_cpu` puts together; 0 where that is
    not known. ATen's int4mm_kernel.cpp: four vectors of floats."""
    return {"AVX512": 64, "AVX2": 32}.get(torch.backends.cpu.get_cpu_capability(), 0)


def _weight_int4pack_mm_for_cpu(x: Tensor, packed: Tensor, group: int, scales: Tensor) -> Tensor:
    """x [m, k] @ w^T for w[n, k] = (q[n, k] - 8) * scales[k / group, n, 0] + scales[k / group, n, 1].

    `packed` has blocks of rows: [n / block, k, block / 2] bytes, each two rows half a block apart.
    """
    block = _block()
    rows, depth = x.shape
    columns = packed.shape[0]
    if not block or columns % block or depth % group:
        return NotImplemented
    half, blocks, groups = block // 2, columns // block, depth // group
    scale, zero = scales.float().unbind(-1)  # [groups, columns]
    parts = packed.view(blocks, depth, half)
    if _has_few_rows(x):
        # The sum over a group of x * (q - 8) * scale + x * zero: sums of x * q and of x are scaled.
        factors = x.float().view(rows, 1, groups, group, 1)
        parts = parts.view(1, blocks, groups, group, half)
        low, high = ((factors * (parts & mask).float()).sum(3) for mask in (15, 240))
        sums = low, high / 16
        scale, zero = (
            t.view(groups, blocks, 2, half).permute(2, 1, 0, 3) for t in (scale, zero - 8 * scale)
        )
        of_factors = factors.sum(3)  # [rows, 1, groups, 1]
        halves = [(total * scale[i] + of_factors * zero[i]).sum(2) for i, total in enumerate(sums)]
        return torch.stack(halves, 2).view(rows, columns).to(x.dtype)
    weight = torch.stack((parts & 15, (parts & 240) // 16), 2).permute(0, 2, 3, 1)
    weight = weight.reshape(columns, groups, group).float() - 8
    weight = weight * scale.t().unsqueeze(-1) + zero.t().unsqueeze(-1)
    return torch.nn.functional.linear(x, weight.view(columns, depth).to(x.dtype))


def _weight_int8pack_mm_on_cuda(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """The same for tensor cores, which widen the weights of a few rows and sum in float32."""
    if not isinstance(x.shape[0], int) or x.shape[0] > FEW_ROWS_ON_CUDA:
        return NotImplemented
    sums = aten.mm.dtype(x, weight.to(x.dtype).t(), torch.float32)
    return (sums * scales.float()).to(x.dtype)


def _weight_int4pack_mm_on_cuda(x: Tensor, packed: Tensor, group: int, scales: Tensor) -> Tensor:
    """The same of many rows, with weights as `_convert_weight_to_int4pack` lays them out on a GPU.

    `packed` is [n / 8, tiles / inner, 32, inner / 2] words: a tile is 8 columns by 16 of k, of which
    a lane has numbers of one column; a word, of two tiles, four pairs of neighbours 8 apart in k,
    one of a pair in its low half. Torch's own product unpacks weights again for every 16 rows. With
    a few, the compiler takes the operator as it is.
    """
    if not isinstance(x.shape[0], int) or x.shape[0] <= FEW_ROWS_ON_CUDA:
        return NotImplemented
    eights, tiles, _, words = packed.shape
    columns, depth = 8 * eights, tiles * words * 32
    pairs = torch.arange(4, device=x.device, dtype=torch.int32) * 4
    halves = torch.arange(2, device=x.device, dtype=torch.int32) * 16
    words_of_lanes = packed.view(eights, tiles, 8, 4, words, 1, 1)
    numbers = torch.bitwise_right_shift(words_of_lanes, pairs.view(4, 1) + halves) & 15
    numbers = numbers.permute(0, 2, 1, 4, 5, 3, 6).reshape(columns, depth // group, group)
    scale, zero = (t.t().unsqueeze(-1) for t in scales.float().unbind(-1))
    weight = ((numbers - 8) * scale + zero).to(x.dtype)
    return torch.nn.functional.linear(x, weight.view(columns, depth))


QUANTIZED: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten._weight_int8pack_mm.default: _weight_int8pack_mm,
    aten._weight_int4pack_mm_for_cpu.default: _weight_int4pack_mm_for_cpu,
}
QUANTIZED_ON_CUDA: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten._weight_int4pack_mm.default: _weight_int4pack_mm_on_cuda
}
# From torch 2.8 on, which has products of 16 bits with a result of 32.
if hasattr(aten.mm, "dtype"):
    QUANTIZED_ON_CUDA[aten._weight_int8pack_mm.default] = _weight_int8pack_mm_on_cuda
