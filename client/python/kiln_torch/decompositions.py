"""Which ATen operators are taken apart before a graph is sent: a list of ours.

The implementations are torch's, but not its choice of them: some entries of
`torch._decomp.core_aten_decompositions()` change what a result means. (That of attention returned
the weights in the place of the log-sum-exp which its backward reads.) So every name stands here for
a reason, tests/python/test_decompositions.py holds each against eager, all results, dtypes, sizes
and strides, and a name that torch adds to its table waits until it is added here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import get_decompositions

aten = torch.ops.aten

# Names in aten: an operator with all of its overloads that make new tensors, or one overload.
DECOMPOSED = frozenset(
    """
    _euclidean_dist _fused_rms_norm _fused_rms_norm_backward _log_softmax_backward_data
    _prelu_kernel _prelu_kernel_backward _reshape_alias _safe_softmax _softmax_backward_data
    _unsafe_index _unsafe_index_put _unsafe_masked_index _unsafe_masked_index_put_accumulate
    _unsafe_view _weight_norm_interface addcdiv addcmul addr affine_grid_generator alias_copy
    all aminmax arange.default arange.start baddbmm binary_cross_entropy
    binary_cross_entropy_backward binary_cross_entropy_with_logits block_diag celu
    channel_shuffle clamp_max clamp_min count_nonzero deg2rad detach diag_embed
    diagonal_backward diagonal_copy dot elu_backward empty_like expand_copy eye fill
    floor_divide frac gelu_backward glu glu_backward hann_window hardshrink hardsigmoid
    hardsigmoid_backward hardswish hardswish_backward hardtanh_backward heaviside huber_loss
    huber_loss_backward im2col isin isneginf isposinf leaky_relu_backward lerp linalg_cross
    linspace log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2 logit logit_backward
    logspace logsumexp masked_fill mish mish_backward mse_loss mse_loss_backward
    multi_margin_loss multilabel_margin_loss_forward mv mvlgamma nan_to_num nansum
    native_batch_norm_backward native_dropout_backward native_group_norm_backward
    native_layer_norm_backward new_empty new_full new_ones new_zeros nll_loss2d_forward
    nll_loss_forward norm ones ones_like pixel_shuffle pixel_unshuffle rad2deg reflection_pad1d
    reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d
    reflection_pad3d_backward renorm replication_pad1d replication_pad2d replication_pad3d roll
    rot90 rsub select_backward select_scatter sgn sigmoid_backward silu silu_backward sinc
    slice_backward smooth_l1_loss smooth_l1_loss_backward soft_margin_loss
    soft_margin_loss_backward softplus softplus_backward softshrink special_entr
    special_log_ndtr special_xlog1py split split_with_sizes_copy squeeze.default squeeze.dim
    squeeze_copy stack std.correction std_mean.correction sum.default t t_copy take
    tanh_backward threshold threshold_backward trace transpose transpose_copy tril triu unbind
    unfold_copy unsafe_split unsafe_split_with_sizes unsqueeze_copy upsample_linear1d vdot xlogy
    zero zeros zeros_like
    """.split()
)


def _makes_new_tensors(overload: torch._ops.OpOverload) -> bool:
    """Not one that writes an argument: functionalization leaves none of those in a graph."""
    return not overload._schema.is_mutable


def _operator(name: str) -> torch._ops.OpOverloadPacket | torch._ops.OpOverload:
    return functools.reduce(getattr, name.split("."), aten)


@functools.lru_cache(maxsize=1)
def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """What AOTAutograd is to take apart; what remains after it is sent."""
    table = get_decompositions([_operator(name) for name in DECOMPOSED])
    return {overload: how for overload, how in table.items() if _makes_new_tensors(overload)}
