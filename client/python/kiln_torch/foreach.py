"""aten._foreach_*: the same operator for every tensor of a list, taken apart into that operator.

Optimizers write their steps so. Their many small updates meet again where kernels are fused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def _norm(x: torch.Tensor, ord: float = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.linalg.vector_norm(x, ord, dtype=dtype)


# Where the operator of one tensor has another name or other arguments.
_ONE: dict[str, Callable[..., torch.Tensor]] = {
    "addcdiv": lambda x, a, b, value=1: x + value * a / b,
    "addcmul": lambda x, a, b, value=1: x + value * a * b,
    "copy": lambda x, source: source.to(x.dtype).expand_as(x).clone(),
    "max": torch.amax,
    "maximum": lambda x, other: x.clamp_min(other),
    "minimum": lambda x, other: x.clamp_max(other),
    "norm": _norm,
    "zero": torch.zeros_like,
}


def _is_list(parameter: torch._C.Argument) -> bool:
    # "scalars" that are a tensor hold one number for each call.
    return isinstance(parameter.type, torch.ListType) or parameter.name == "scalars"


def _each(
    one: Callable[..., torch.Tensor], schema: torch._C.FunctionSchema, *args: Any, **kwargs: Any
) -> list[torch.Tensor]:
    lists = {parameter.name for parameter in schema.arguments if _is_list(parameter)}
    names = [parameter.name for parameter in schema.arguments]
    count = next(len(arg) for name, arg in zip(names, args, strict=False) if name in lists)
    results = []
    for n in range(count):
        nth = [arg[n] if name in lists else arg for name, arg in zip(names, args, strict=False)]
        named = {name: arg[n] if name in lists else arg for name, arg in kwargs.items()}
        results.append(one(*nth, **named))
    return results


def _overloads() -> Iterator[tuple[str, torch._ops.OpOverload]]:
    for name in dir(aten):
        if name.startswith("_foreach_") and not name.endswith("_"):
            packet = getattr(aten, name)
            for overload in packet.overloads():
                yield name.removeprefix("_foreach_"), getattr(packet, overload)


def _one(name: str) -> Callable[..., torch.Tensor] | None:
    return _ONE.get(name) or getattr(torch, name, None)


def foreach_decompositions() -> dict[torch._ops.OpOverload, Callable[..., Sequence[torch.Tensor]]]:
    """For every functional overload whose operator of one tensor there is."""
    found = {}
    for name, overload in _overloads():
        one = _one(name)
        if one is not None and not overload._schema.is_mutable:
            found[overload] = functools.partial(_each, one, overload._schema)
    return found
