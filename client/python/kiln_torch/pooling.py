"""The gradient of max pooling on a CPU as a scatter: each window adds to the element that its index
names.

So windows are read once each, and added in the order of ATen's kernel
(aten/src/ATen/native/cpu/MaxPoolKernel.cpp). Where the channels of an image are its innermost
dimension, the compiler's own form is left, which gathers a vector of channels at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch._prims_common import is_contiguous_or_false

Tensor = torch.Tensor


def max_pool_backward(spatial: int) -> Callable[..., Tensor]:
    """For images of `spatial` dimensions after those of samples and channels."""

    def backward(
        grad_output: Tensor,
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: Tensor,
    ) -> Tensor:
        if not is_contiguous_or_false(x):
            return NotImplemented
        images = x.shape[:-spatial]
        elements, windows = (math.prod(t.shape[-spatial:]) for t in (x, indices))
        gradient = grad_output.new_zeros([*images, elements])
        places, values = (t.reshape([*images, windows]) for t in (indices, grad_output))
        return gradient.scatter_add(-1, places, values).reshape(x.shape)

    return backward
