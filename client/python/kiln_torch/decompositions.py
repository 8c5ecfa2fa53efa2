"""Which ATen operators are taken apart before a graph is sent: a list of ours.

The implementations are mostly torch's, but not its choice of them: some entries of
`torch._decomp.core_aten_decompositions()` change what a result means. (That of attention returned
the weights in the place of the log-sum-exp which its backward reads.) So every name stands here for
a reason, tests/python/test_decompositions.py holds each against eager, all results, dtypes, sizes
and strides, and a name that torch adds to its table waits until it is added here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.nn import _reduction

from kiln_torch.distances import DISTANCES
from kiln_torch.foreach import foreach_decompositions
from kiln_torch.margins import MARGIN_LOSSES
from kiln_torch.norms import vector_norm, weight_norm, weight_norm_backward
from kiln_torch.promotion import with_atens_types
from kiln_torch.quantized import QUANTIZED, QUANTIZED_ON_CUDA

aten = torch.ops.aten

# Names in aten: an operator with all of its overloads that make new tensors, or one overload.
DECOMPOSED = frozenset(
    """
    _euclidean_dist _fused_rms_norm _fused_rms_norm_backward _log_softmax_backward_data
    _prelu_kernel _prelu_kernel_backward _reshape_alias _safe_softmax _softmax_backward_data
    _unsafe_index _unsafe_index_put _unsafe_masked_index _unsafe_masked_index_put_accumulate
    _unsafe_view _weight_norm_interface addr affine_grid_generator alias_copy
    all aminmax arange.default arange.start baddbmm.default binary_cross_entropy
    binary_cross_entropy_backward binary_cross_entropy_with_logits block_diag celu
    channel_shuffle clamp_max clamp_min count_nonzero deg2rad detach diag_embed
    diagonal_backward diagonal_copy dot elu_backward empty_like expand_copy eye fill
    floor_divide frac gelu_backward glu glu_backward hann_window hardshrink hardsigmoid
    hardsigmoid_backward hardswish hardswish_backward hardtanh_backward heaviside huber_loss
    huber_loss_backward im2col isin isneginf isposinf leaky_relu_backward linalg_cross
    linspace.default log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2 logit logit_backward
    logspace.default logsumexp masked_fill mish mish_backward mse_loss mse_loss_backward
    mv mvlgamma nan_to_num nansum
    native_batch_norm_backward native_dropout_backward native_group_norm_backward
    native_layer_norm_backward new_empty new_full new_ones new_zeros nll_loss2d_forward
    nll_loss_forward norm ones ones_like pixel_shuffle pixel_unshuffle rad2deg renorm
    rot90 rsub select_backward select_scatter sgn sigmoid_backward silu silu_backward sinc
    slice_backward smooth_l1_loss smooth_l1_loss_backward soft_margin_loss
    soft_margin_loss_backward softplus softplus_backward softshrink special_entr
    special_log_ndtr special_xlog1py split split_with_sizes_copy squeeze.default squeeze.dim
    squeeze_copy stack std.correction std_mean.correction sum.default t t_copy take
    tanh_backward threshold threshold_backward trace transpose transpose_copy tril triu unbind
    unfold_copy unsafe_split unsafe_split_with_sizes unsqueeze_copy vdot xlogy
    zero zeros zeros_like
    """.split()
)


# Of those, what stays whole on a GPU: a library has it faster, or it is taken apart as the CPU's
# kernel computes it.
_WHOLE_ON_CUDA = frozenset("_euclidean_dist baddbmm.default dot im2col mv vdot".split())

# cuDNN's, which write to the running statistics and do not say so: taken apart as torch's own are.
# Of a log-softmax only the maxima and sums of rows are then kept for the backward pass, and who
# takes single elements computes these alone.
_ONLY_ON_CUDA = frozenset(
    """
    _batch_norm_no_update _batch_norm_with_update_functional _log_softmax batch_norm_backward
    cudnn_batch_norm cudnn_batch_norm_backward
    """.split()
)

Tensor = torch.Tensor


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor
) -> Tensor:
    """(x - mean) * rstd * weight + bias by channel, in the arithmetic of `mean`, and lying in memory as
    ATen's result: contiguous, or channels last."""
    channels = [1, -1] + [1] * (x.dim() - 2)
    out = (x - mean.view(channels)) * rstd.view(channels)
    if weight is not None:
        out = out * weight.view(channels)
    if bias is not None:
        out = out + bias.view(channels)
    return out.to(x.dtype).contiguous(memory_format=suggest_memory_format(x))


def _arithmetic(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _statistics_dtype(x: Tensor, *parameters: Tensor | None) -> torch.dtype:
    """What ATen's CPU kernels save statistics in: float32 where any parameter has it."""
    given = {parameter.dtype for parameter in parameters if parameter is not None}
    return torch.float32 if torch.float32 in given else x.dtype


def _training_statistics(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(variance, mean, rstd) by channel."""
    dims = [0, *range(2, x.dim())]
    variance, mean = torch.var_mean(x.to(_arithmetic(x.dtype)), dims, correction=0)
    return variance, mean, torch.rsqrt(variance + eps)


def _native_batch_norm_legit_functional(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """torch's has the running and saved statistics in other dtypes than ATen where x is bfloat16."""
    saved = _statistics_dtype(x, weight, bias, running_mean, running_var)
    arithmetic = _arithmetic(x.dtype)
    if not training:
        rstd = torch.rsqrt(running_var.to(arithmetic) + eps)
        out = _batch_norm(x, weight, bias, running_mean.to(arithmetic), rstd)
        none = x.new_zeros((0,), dtype=saved)
        return out, none, none.clone(), running_mean.clone(), running_var.clone()
    variance, mean, rstd = _training_statistics(x, eps)
    count = x.numel() // x.shape[1]
    unbiased = variance * count / (count - 1)

    def moved(running: Tensor, new: Tensor) -> Tensor:
        return (running * (1 - momentum) + new * momentum).to(running.dtype)

    return (
        _batch_norm(x, weight, bias, mean, rstd),
        mean.to(saved),
        rstd.to(saved),
        moved(running_mean, mean),
        moved(running_var, unbiased),
    )


def _native_batch_norm_legit_no_stats(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    saved = _statistics_dtype(x, weight, bias)
    _, mean, rstd = _training_statistics(x, eps)
    return _batch_norm(x, weight, bias, mean, rstd), mean.to(saved), rstd.to(saved)


def _is_mixed(x: Tensor, *parameters: Tensor | None) -> bool:
    return _statistics_dtype(x, *parameters) != x.dtype


def _native_layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of a 16-bit x beside float32 parameters: torch declares its statistics as 16-bit, ATen's kernel
    makes float32. Everything else stays one operator."""
    if not _is_mixed(x, weight, bias):
        return NotImplemented
    out, mean, rstd = aten.native_layer_norm(x.float(), shape, weight, bias, eps)
    return out.to(x.dtype), mean, rstd


def _native_group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """As _native_layer_norm."""
    if not _is_mixed(x, weight, bias):
        return NotImplemented
    out, mean, rstd = aten.native_group_norm(
        x.float(), weight, bias, n, channels, pixels, groups, eps
    )
    return out.to(x.dtype), mean, rstd


def _nll_loss_backward(
    grad_output: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """By comparison with the class's number: torch's scatters, which passes over memory twice more.

    Also of nll_loss2d: x is [classes], [n, classes] or [n, classes, height, width].
    """
    class_dim = 0 if x.dim() < 2 else 1
    shape = [1] * x.dim()
    shape[class_dim] = -1
    target = target.unsqueeze(class_dim)
    classes = torch.arange(x.shape[class_dim], device=x.device).view(shape)
    if reduction == _reduction.get_enum("mean"):
        grad_output = grad_output / total_weight
    elif reduction == _reduction.get_enum("none"):
        grad_output = grad_output.unsqueeze(class_dim)
    grad = -grad_output if weight is None else -grad_output * weight.view(shape)
    return torch.where((classes == target) & (target != ignore_index), grad, 0.0).to(x.dtype)


def _roll(x: Tensor, shifts: list[int], dims: Sequence[int] = ()) -> Tensor:
    """By joining slices, as ATen's CPU kernel; torch's reads at positions that it computes."""
    if x.numel() == 0:
        return x.clone()
    if not dims:
        return _roll(x.contiguous().view(-1), shifts, [0]).view(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        start = (size - shift) % size
        x = torch.cat([x.narrow(dim, start, size - start), x.narrow(dim, 0, start)], dim)
    return x


def _histc(x: Tensor, bins: int = 100, minimum: float = 0, maximum: float = 0) -> Tensor:
    """As ATen's CPU kernel, which gives elements outside no bin."""
    if x.numel() == 0 or not x.is_floating_point():
        return NotImplemented
    low, high = x.new_full((), minimum), x.new_full((), maximum)
    if minimum == maximum:
        low, high = x.amin(), x.amax()
    is_point = low == high
    low, high = torch.where(is_point, low - 1, low), torch.where(is_point, high + 1, high)
    flat = x.reshape(-1)
    counts = (flat >= low) & (flat <= high)
    place = ((flat - low) * bins / (high - low)).to(torch.int64).clamp(max=bins - 1)
    zeros = torch.zeros(bins, dtype=x.dtype, device=x.device)
    return zeros.index_add(0, torch.where(counts, place, 0), counts.to(x.dtype))


def _smooth_l1_loss_backward(
    grad_output: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    """Of a NaN a NaN, as ATen's kernels: torch's takes it for a far one, and the gradient for 0."""
    if reduction == _reduction.get_enum("mean"):
        grad_output = (1.0 / x.numel()) * grad_output
    distance = x - target
    near = grad_output * distance / beta
    return torch.where(distance.abs() >= beta, grad_output * distance.sign(), near)


def _lying_as_first(how: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`how` where its result lies in memory as the first argument does, as ATen's; else none. What torch has written
    into a view is viewed as the whole again, which other strides may not allow."""

    @functools.wraps(how)
    def decomposition(x: Tensor, *rest: Any) -> Tensor:
        out = how(x, *rest)
        return out if out.stride() == torch.empty_like(x).stride() else NotImplemented

    return decomposition


def _gradient_of_a_loss(how: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`how`, which divides 1 by the number of elements, for any number of them."""

    @functools.wraps(how)
    def gradient(grad_output: Tensor, x: Tensor, target: Tensor, *rest: Any) -> Tensor:
        if guard_or_false(x.numel() == 0):
            return x - target
        return how(grad_output, x, target, *rest)

    return gradient


_DIVIDE_BY_NUMBER = (
    aten.huber_loss_backward.default,
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
)


# Those that torch has not, or has otherwise than ATen.
_OURS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten._native_batch_norm_legit_functional.default: _native_batch_norm_legit_functional,
    aten._native_batch_norm_legit.no_stats: _native_batch_norm_legit_no_stats,
    aten.native_group_norm.default: _native_group_norm,
    aten.native_layer_norm.default: _native_layer_norm,
    aten.nll_loss_backward.default: _nll_loss_backward,
    aten.nll_loss2d_backward.default: _nll_loss_backward,
    aten.roll.default: _roll,
}

# In the CPU's way.
_OURS_ON_CPU: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten._weight_norm_interface.default: weight_norm,
    aten._weight_norm_interface_backward.default: weight_norm_backward,
    aten.histc.default: _histc,
    aten.linalg_vector_norm.default: vector_norm,
}


def _makes_new_tensors(overload: torch._ops.OpOverload) -> bool:
    """Not one that writes an argument: functionalization leaves none of those in a graph."""
    return not overload._schema.is_mutable


def _operator(name: str) -> torch._ops.OpOverloadPacket | torch._ops.OpOverload:
    return functools.reduce(getattr, name.split("."), aten)


@functools.lru_cache(maxsize=2)
def decompositions(
    device_type: str = "cpu",
) -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """What AOTAutograd is to take apart on "cpu" or "cuda"; what remains after it is sent."""
    on_cpu = device_type == "cpu"
    names = DECOMPOSED if on_cpu else DECOMPOSED - _WHOLE_ON_CUDA | _ONLY_ON_CUDA
    table = get_decompositions([_operator(name) for name in names])
    chosen = {overload: how for overload, how in table.items() if _makes_new_tensors(overload)}
    chosen[aten.smooth_l1_loss_backward.default] = _smooth_l1_loss_backward
    chosen |= {overload: _gradient_of_a_loss(chosen[overload]) for overload in _DIVIDE_BY_NUMBER}
    chosen[aten.select_scatter.default] = _lying_as_first(chosen[aten.select_scatter.default])
    chosen |= with_atens_types(chosen)
    ours = _OURS | MARGIN_LOSSES | (_OURS_ON_CPU | DISTANCES | QUANTIZED if on_cpu else QUANTIZED_ON_CUDA)
    return chosen | foreach_decompositions() | ours
