"""Matrix products of 16-bit numbers on a GPU whose sizes are no multiples of 16 bytes.

cuBLAS has its fast kernels only where rows and their lengths are: a vocabulary of 50257 makes a
product five times slower than one of 50264. Padded copies cost less than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

aten = torch.ops.aten

_UNIT = 8  # elements of 16 bits in 16 bytes
_DTYPES = ("DTYPE_BFLOAT16", "DTYPE_FLOAT16")
# Measured on an H100: 158 GFLOP took 1.66 ms with 50257 columns, 0.33 ms aligned; a copy of 206 MB
# with padding 0.26 ms.
_SECONDS_OF_AN_OPERATION = 8.4e-15  # more for each, where a matrix is not aligned
_SECONDS_OF_A_BYTE = 6.2e-13  # read or written by a copy
_SECONDS_OF_A_COPY = 6e-6


def _constants(numbers: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """Of SymInt messages, as JSON; None where one is not constant."""
    if any("expr" in number for number in numbers):
        return None
    return [int(number.get("value", 0)) for number in numbers]


def _whole(size: int) -> int:
    return math.ceil(size / _UNIT) * _UNIT


def _along(strides: Sequence[int]) -> int:
    """The dimension that a matrix' rows are along."""
    return 1 if strides[1] == 1 else 0


def _is_aligned(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Of a matrix with one dimension contiguous; another one is copied by the library."""
    if 1 not in strides:
        return True
    along = strides.index(1)
    return sizes[along] % _UNIT == 0 and strides[1 - along] % _UNIT == 0


def _padded(matrix: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """A dense copy with zeros after it up to that size, in its own order of dimensions."""
    if matrix.stride(1) != 1:
        return _padded(matrix.t(), columns, rows).t()
    more = (columns - matrix.shape[1], rows - matrix.shape[0])
    if more == (0, 0):
        return matrix.contiguous()
    return torch.nn.functional.pad(matrix, (0, more[0], 0, more[1]))


def _clear(matrix: torch.Tensor, padding: int) -> None:
    """Makes zeros of so many elements at the end of each row."""
    rows = matrix if matrix.stride(1) == 1 else matrix.t()
    rows[:, rows.shape[1] - padding :].zero_()


def _padded_bias(bias: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """`bias` with so many more rows and columns where it has such, and is not repeated."""
    pads = [0, columns if bias.dim() > 0 and bias.shape[-1] > 1 else 0]
    pads += [0, rows] if bias.dim() == 2 and bias.shape[0] > 1 else []
    return torch.nn.functional.pad(bias, pads) if any(pads) else bias


def aligned_product(
    op: torch._ops.OpOverload, views: Sequence[Mapping[str, Any]]
) -> Callable[..., torch.Tensor] | None:
    """What to call for aten.mm or aten.addmm of matrices as `views` has them, BufferView messages as
    JSON, in the order of the arguments; None where the operator itself is as fast, or is another.

    A view may have `row_padding`: that many elements at the end of each row are nobody's, and there is
    always something to call. The result has the operator's values, the same order of summation not
    granted, and is contiguous.
    """
    if op not in (aten.mm.default, aten.addmm.default) or len(views) < 2:
        return None
    matrices = views[-2:]
    if any(view.get("dtype") not in _DTYPES for view in matrices):
        return None
    given = [_constants(view.get("sizes", [])) for view in matrices]
    strides = [_constants(view.get("strides", [])) for view in matrices]
    if None in given or None in strides:
        return None
    sizes = [size.copy() for size in given]
    paddings = [view.get("row_padding", 0) for view in matrices]
    for size, stride, padding in zip(sizes, strides, paddings, strict=True):
        size[_along(stride)] -= padding
    (m, k), (_, n) = sizes
    if not any(paddings) and all(map(_is_aligned, sizes, strides)) and n % _UNIT == 0:
        return None
    has_bias = op is aten.addmm.default
    # Rows of the first matrix and columns of the second need padding only where they are contiguous;
    # a bias is added to whole results. Else the last few columns are a product of their own.
    columns = _whole(n) if has_bias or strides[1][1] == 1 else n
    sides = _whole(m) if strides[0][0] == 1 else m, _whole(k), columns
    shapes = (sides[0], sides[1]), (sides[1], sides[2])
    copied = [
        shape != tuple(size) or not _is_aligned(size, stride)
        for shape, size, stride in zip(shapes, given, strides, strict=True)
    ]
    # What is past the depth counts in each sum; other padding only in what is cut off.
    cleared = [_along(stride) == 1 - i and paddings[i] for i, stride in enumerate(strides)]
    is_cut = (sides[0], _whole(n)) != (m, n)
    elements = copied[0] * m * k + copied[1] * k * n + is_cut * m * n
    cost = (sum(copied) + is_cut) * _SECONDS_OF_A_COPY + elements * 4 * _SECONDS_OF_A_BYTE
    if not any(paddings) and 2 * m * n * k * _SECONDS_OF_AN_OPERATION < cost:
        return None
    whole = columns // _UNIT * _UNIT
    bounds = (0, whole), (whole, columns)
    parts = [slice(begin, end) for begin, end in bounds if begin != end]

    def product(*args: torch.Tensor) -> torch.Tensor:
        *bias, a, b = args
        for matrix, padding in zip((a, b), cleared, strict=True):
            if padding:
                _clear(matrix, padding)
        a = _padded(a, *shapes[0]) if copied[0] else a
        b = _padded(b, *shapes[1]) if copied[1] else b
        if bias:
            result = torch.addmm(_padded_bias(*bias, sides[0] - m, columns - n), a, b)
        else:
            result = a.new_empty(sides[0], _whole(n))
            for part in parts:
                torch.mm(a, b[:, part], out=result[:, part])
        return result[:m, :n].contiguous() if is_cut else result

    return product
