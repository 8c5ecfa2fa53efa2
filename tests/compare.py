"""Comparison with eager under the rules of torch._dynamo.utils.same, against a float64 reference."""

import copy

import torch
from kiln_torch.compare import finite_parts
from torch._dynamo.utils import same
from torch.utils._pytree import tree_leaves, tree_map


def strides(tensor):
    """Those that matter: in a dimension of one element, torch's own kernels and meta functions give
    different ones."""
    return [s for size, s in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def to_double(value):
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return value


def assert_same(actual, expected, reference=None, tol=1e-4, what="output"):
    """`actual` is as good an answer as `expected`; float64 `reference` decides close calls.

    `what` names the values in an error: "output" 0, 1, ..."""
    actual_leaves, expected_leaves = tree_leaves(actual), tree_leaves(expected)
    assert len(actual_leaves) == len(expected_leaves)
    reference_leaves = tree_leaves(reference) if reference is not None else [None] * len(
        expected_leaves
    )
    for i, (a, e, r) in enumerate(
        zip(actual_leaves, expected_leaves, reference_leaves, strict=True)
    ):
        if not isinstance(e, torch.Tensor):
            assert a == e, f"{what} {i}"
            continue
        assert a.dtype == e.dtype and a.shape == e.shape, f"{what} {i}: {a.dtype} {a.shape}"
        if e.numel() > 0:
            assert strides(a) == strides(e), f"{what} {i}: strides {a.stride()}, not {e.stride()}"
        if e.is_floating_point():
            finite = finite_parts(a, e, r)
            assert finite is not None, f"{what} {i}: other NaN or infinities"
            a, e, r = finite
        assert same(e, a, fp64_ref=r, tol=tol, equal_nan=True), (
            f"{what} {i} differs by up to {(a.double() - e.double()).abs().max().item()}"
        )


def double_reference(fn, args):
    """`fn` on float64 copies of itself and of `args`, a tuple, or a dict of keyword arguments."""
    if isinstance(fn, torch.nn.Module):
        fn = copy.deepcopy(fn).double()
    args = tree_map(to_double, args)
    return fn(**args) if isinstance(args, dict) else fn(*args)
