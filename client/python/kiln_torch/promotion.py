"""Types of results where those of the arguments differ: torch's decompositions forget some of ATen's rules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.nn import _reduction

aten = torch.ops.aten


def _block_diag(how: Callable[..., Tensor], tensors: Sequence[Tensor]) -> Tensor:
    """What has no dimensions counts for less."""
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH
    dtype, _ = elementwise_dtypes(*tensors, type_promotion_kind=kind)
    return how([x.to(dtype) for x in tensors])


def _addr(how: Callable[..., Tensor], x: Tensor, left: Tensor, right: Tensor, **scales: Any) -> Tensor:
    """The widest of the three, of whatever sizes."""
    dtype = functools.reduce(torch.promote_types, (x.dtype, left.dtype, right.dtype))
    return how(x.to(dtype), left.to(dtype), right.to(dtype), **scales)


def _select_scatter(how: Callable[..., Tensor], x: Tensor, source: Tensor, *place: int) -> Tensor:
    return how(x, source.to(x.dtype), *place)


_MEAN, _SUM = _reduction.get_enum("mean"), _reduction.get_enum("sum")


def _loss(
    how: Callable[..., Tensor], x: Tensor, target: Tensor, reduction: int = _MEAN, *rest: Any
) -> Tensor:
    """A loss is of its prediction's type, element by element before they are added up."""
    if x.dtype == target.dtype:
        return how(x, target, reduction, *rest)
    each = how(x, target, _reduction.get_enum("none"), *rest).to(x.dtype)
    return each.mean() if reduction == _MEAN else each.sum() if reduction == _SUM else each


_RULES: dict[torch._ops.OpOverload, Callable[..., Tensor]] = {
    aten.addr.default: _addr,
    aten.block_diag.default: _block_diag,
    aten.huber_loss.default: _loss,
    aten.select_scatter.default: _select_scatter,
    aten.soft_margin_loss.default: _loss,
}


def with_atens_types(
    table: dict[torch._ops.OpOverload, Callable[..., Any]],
) -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """Those of the decompositions in `table` that need it, with results of the types that ATen gives."""
    return {op: functools.partial(rule, table[op]) for op, rule in _RULES.items() if op in table}
