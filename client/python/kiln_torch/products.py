"""Matrix products of 16-bit numbers on a GPU whose rows do not begin at multiples of 16 bytes.

cuBLAS has its fast kernels only for matrices whose rows all do: a vocabulary of 50257 makes a product
five times slower than one of 50264. A copy with longer rows costs less than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

aten = torch.ops.aten

_LINE = 8  # elements of 16 bits in 16 bytes
_DTYPES = ("DTYPE_BFLOAT16", "DTYPE_FLOAT16")
# Measured on an H100: 158 GFLOP took 1.66 ms with rows of 50257 elements, 0.33 ms with aligned ones.
_SECONDS_OF_A_PRODUCT = 8.4e-15  # more for each operation, where a matrix is not aligned
_SECONDS_OF_A_BYTE = 4e-13  # read or written by a copy
_SECONDS_OF_A_COPY = 6e-6


def _constants(numbers: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """Of SymInt messages, as JSON; None where one is not constant."""
    if any("expr" in number for number in numbers):
        return None
    return [int(number.get("value", 0)) for number in numbers]


def _is_aligned(strides: Sequence[int]) -> bool:
    """Of a matrix with one dimension contiguous; another one is copied by the library."""
    return 1 not in strides or max(strides) % _LINE == 0


def _lined(matrix: torch.Tensor) -> torch.Tensor:
    """A copy whose rows, or columns where these are contiguous, begin at multiples of 16 bytes."""
    if matrix.stride(1) != 1:
        return _lined(matrix.t()).t()
    return _empty_lined(matrix, *matrix.shape).copy_(matrix)


def _empty_lined(like: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return like.new_empty((rows, math.ceil(columns / _LINE) * _LINE))[:, :columns]


def aligned_product(
    op: torch._ops.OpOverload, views: Sequence[Mapping[str, Any]]
) -> Callable[..., torch.Tensor] | None:
    """What to call for aten.mm or aten.addmm of matrices as `views` has them, BufferView messages as
    JSON, in the order of the arguments; None where the operator itself is as fast, or is another."""
    if op not in (aten.mm.default, aten.addmm.default) or len(views) < 2:
        return None
    matrices = views[-2:]
    if any(view.get("dtype") not in _DTYPES for view in matrices):
        return None
    sizes = [_constants(view.get("sizes", [])) for view in matrices]
    strides = [_constants(view.get("strides", [])) for view in matrices]
    if None in sizes or None in strides:
        return None
    (m, k), (_, n) = sizes
    copied = [not _is_aligned(s) for s in strides]
    pads_result = n % _LINE != 0
    elements = sum(math.prod(s) for s, c in zip(sizes, copied, strict=True) if c)
    elements += m * n if pads_result else 0
    copies = sum(copied) + pads_result
    cost = copies * _SECONDS_OF_A_COPY + elements * 4 * _SECONDS_OF_A_BYTE
    if not copies or 2 * m * n * k * _SECONDS_OF_A_PRODUCT < cost:
        return None

    def product(*args: torch.Tensor) -> torch.Tensor:
        *bias, a, b = args
        a, b = (_lined(x) if c else x for x, c in zip((a, b), copied, strict=True))
        if not pads_result:
            return op(*bias, a, b)
        out = _empty_lined(a, m, n)
        function = torch.addmm if bias else torch.mm
        return function(*bias, a, b, out=out).contiguous()

    return product
