"""Does a value equal eager's? torch's rules for floating values; everything else exactly."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch._dynamo.utils import same

# What torch's own accuracy check takes, by type; float64 must agree as closely as it can.
_TOLERANCES = {
    torch.float16: 1e-3,
    torch.bfloat16: 1e-2,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
}
_TOLERANCE = 1e-8


def difference(ours: Any, eager: Any, reference: Any = None) -> str | None:
    """What tells `ours` from `eager`, in words, or None.

    Type, dtype, sizes and strides must be the same; so must integers and truth values. Floating
    values must be near eager's, or as near to `reference`, the same in float64, as eager's are
    (torch._dynamo.utils.same). NaN equals NaN.
    """
    if not isinstance(eager, torch.Tensor):
        equal = type(ours) is type(eager) and ours == eager
        return None if equal else f"is {ours!r}; eager gives {eager!r}"
    if not isinstance(ours, torch.Tensor):
        return f"is a {type(ours).__name__}; eager gives a tensor"
    for name in ("dtype", "shape", "device"):
        if getattr(ours, name) != getattr(eager, name):
            mine, theirs = _short(getattr(ours, name)), _short(getattr(eager, name))
            return f"has {name} {mine}; eager's is {theirs}"
    if _strides(ours) != _strides(eager) and eager.numel() > 0:
        return f"has strides {ours.stride()}; eager's are {eager.stride()}"
    if eager.numel() == 0 or _equal(ours, eager, reference):
        return None
    return _where(ours, eager, reference)


def _strides(tensor: torch.Tensor) -> list[int]:
    """Those that matter: in a dimension of one element, torch's own kernels and meta functions give
    different ones."""
    return [s for size, s in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def _short(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value)


def _equal(ours: torch.Tensor, eager: torch.Tensor, reference: Any) -> bool:
    if not (eager.is_floating_point() or eager.is_complex()):
        return torch.equal(ours, eager)
    if eager.is_complex():
        ours, eager = (torch.view_as_real(value.resolve_conj()) for value in (ours, eager))
        reference = None
    if not isinstance(reference, torch.Tensor):
        reference = None
    finite = finite_parts(ours, eager, reference)
    if finite is None:
        return False
    ours, eager, reference = finite
    return same(
        eager,
        ours,
        fp64_ref=reference,
        tol=_TOLERANCES.get(eager.dtype, _TOLERANCE),
        equal_nan=True,
        log_error=logging.getLogger("kiln_torch").debug,
    )


def finite_parts(
    ours: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None:
    """The elements of which eager's and the reference are finite numbers; None where both are the same NaN or infinity
    in some place and ours is not. torch._dynamo.utils.same judges by the error of a whole tensor, and takes anything
    for equal where that is a NaN."""
    if reference is None or not reference.is_floating_point():
        settled = loose = ~eager.isfinite()
    else:
        equal = (eager == reference) | (eager.isnan() & reference.isnan())
        loose = ~(eager.isfinite() & reference.isfinite())
        settled = loose & equal
    if not ((ours == eager) | (ours.isnan() & eager.isnan()))[settled].all():
        return None
    if not loose.any():
        return ours, eager, reference
    return ours[~loose], eager[~loose], None if reference is None else reference[~loose]


def _where(ours: torch.Tensor, eager: torch.Tensor, reference: Any) -> str:
    """How many elements differ, and the one that differs most."""
    if not (ours.is_floating_point() or ours.is_complex()):
        error = (ours != eager).double()  # doubles do not hold every integer
    elif ours.is_complex():
        error = (ours.to(torch.complex128) - eager.to(torch.complex128)).abs()
    else:
        error = (ours.double() - eager.double()).abs()
    error = torch.where(ours.isnan() != eager.isnan(), torch.inf, error).nan_to_num(0.0, torch.inf)
    differ = int((ours != eager).logical_and(error != 0).sum())
    at = int(error.reshape(-1).argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), eager.shape))
    text = (
        f"differs in {differ} of {eager.numel()} elements, most at {place}: "
        f"{ours[place].item()!r}; eager gives {eager[place].item()!r}"
    )
    if isinstance(reference, torch.Tensor) and reference.shape == eager.shape:
        text += f", float64 {reference[place].item()!r}"
    return text
