"""Integer divisions by tensors. Where a divisor is 0 ATen's CPU kernels raise, and so does a graph: it asserts
that none is, beside the division, which stays whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false

aten = torch.ops.aten


def _assert_no_zero(dividend: Any, divisor: torch.Tensor, **how: Any) -> Any:
    result = torch.result_type(dividend, divisor)
    is_exact = how.get("rounding_mode", "floor") is None
    is_empty = isinstance(dividend, torch.Tensor) and guard_or_false(dividend.numel() == 0)
    if not (result.is_floating_point or result.is_complex or is_exact or is_empty):
        aten._assert_async.msg(aten.all.default(aten.ne.Scalar(divisor, 0)), "ZeroDivisionError")
    return NotImplemented


DIVISIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = dict.fromkeys(
    (
        aten.div.Tensor_mode,
        aten.remainder.Tensor,
        aten.remainder.Scalar_Tensor,
        aten.fmod.Tensor,
    ),
    _assert_no_zero,
)
