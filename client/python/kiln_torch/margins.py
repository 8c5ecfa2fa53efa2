"""torch's margin losses of classes, taken apart as ATen's CPU kernels compute them.

torch's own rules, which it has above autograd, count a list of labels that ends before its last place as if label 0
followed (aten/src/ATen/native/LossMultiLabelMargin.cpp), and give a single sample's loss a dimension
(aten/src/ATen/native/LossMultiMargin.cpp).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._C import DispatchKey
from torch.nn import _reduction

from kiln_torch.kernels import Kernels

aten = torch.ops.aten
Tensor = torch.Tensor
_MEAN = _reduction.get_enum("mean")


def _scores(x: Tensor) -> Tensor:
    """[samples, classes], in the type of the arithmetic."""
    scores = torch.atleast_2d(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x)
    torch._check(scores.dim() == 2 and scores.shape[1] != 0, lambda: f"no classes in {x.shape}")
    return scores


def _reduced(losses: Tensor, x: Tensor, reduction: int) -> Tensor:
    """Of the loss of each sample of `x`."""
    losses = losses.to(x.dtype)
    if reduction == _reduction.get_enum("none"):
        return losses.reshape(x.shape[:-1])
    return losses.mean() if reduction == _MEAN else losses.sum()


def multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: float = 1,
    margin: float = 1,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """`x` is [samples, classes], [classes] or one score, `target` the class of each sample."""
    scores, target = _scores(x), torch.atleast_1d(target).unsqueeze(1)
    classes = scores.shape[1]
    torch._check(p == 1 or p == 2, lambda: f"p is 1 or 2, not {p}")
    torch._check(
        target.dim() == 2 and target.shape[0] == scores.shape[0],
        lambda: f"{target.shape[0]} targets of {scores.shape[0]} samples",
    )
    gap = margin - scores.gather(1, target) + scores
    is_wrong = (gap > 0) & (torch.arange(classes, device=x.device) != target)
    gap = torch.where(is_wrong, gap if p == 1 else gap * gap, 0.0)
    if weight is not None:
        torch._check(weight.numel() == classes, lambda: f"{weight.numel()} weights of {classes}")
        gap = gap * weight.reshape(-1)[target]
    return _reduced(gap.sum(1) / classes, x, reduction)


def multilabel_margin_loss_forward(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """(loss, whether each class is one of its sample's); `target` is of the shape of `x`, [samples,
    classes] or [classes]: classes up to the first negative number or the end."""
    torch._check(x.shape == target.shape, lambda: f"targets {target.shape} of scores {x.shape}")
    scores, target = _scores(x), torch.atleast_2d(target)
    classes = scores.shape[1]
    number = torch.arange(classes, device=x.device)
    end = torch.where(target < 0, number, classes).amin(1, keepdim=True)
    counts = number < end
    target = torch.where(counts, target, 0)
    is_target = (counts.unsqueeze(2) & (target.unsqueeze(2) == number)).any(1)
    gap = 1 - scores.gather(1, target).unsqueeze(2) + scores.unsqueeze(1)  # [samples, places, classes]
    is_wrong = (gap > 0) & counts.unsqueeze(2) & ~is_target.unsqueeze(1)
    losses = torch.where(is_wrong, gap, 0.0).sum((1, 2)) / classes
    return _reduced(losses, x, reduction), is_target.to(x.dtype).reshape(x.shape)


MARGIN_LOSSES: dict[torch._ops.OpOverload, Callable[..., Tensor | tuple[Tensor, ...]]] = {
    aten.multi_margin_loss.default: multi_margin_loss,
    aten.multilabel_margin_loss_forward.default: multilabel_margin_loss_forward,
}


def margin_losses_as_atens() -> Kernels:
    return {op: {DispatchKey.Autograd: how} for op, how in MARGIN_LOSSES.items()}
