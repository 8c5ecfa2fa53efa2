"""Padding before windows: no kernel of its own, and equal to eager forward and backward."""

import pytest
import torch
from compare import assert_same
from torch.nn import functional

import kiln_torch

CASES = [
    # pad (left, right, top, bottom), value, stride, groups
    ((1, 1, 1, 1), 0.0, 1, 8),
    ((0, 1, 0, 1), 0.0, 2, 8),
    ((0, 1, 0, 1), 0.0, 2, 1),
    ((2, 0, 3, 1), 0.0, 1, 1),
    ((1, 2, 0, 1), 1.5, 2, 8),
    ((1, 2, 0, 1), -0.5, 1, 2),
    ((-1, 2, 1, -2), 0.0, 1, 8),
    ((-1, -2, 0, -1), 0.0, 1, 1),
    ((0, 0, 0, 0), 0.0, 2, 8),
]


def gradients(fn, *inputs):
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = fn(*inputs)
    return out.detach(), *torch.autograd.grad(out.square().sum(), inputs)


def kernels_of(fn, *args) -> str:
    with torch.no_grad():
        return "\n".join(
            line for line in kiln_torch.explain(fn, *args).splitlines() if "  kernel " in line
        )


@pytest.mark.parametrize(("pad", "value", "stride", "groups"), CASES)
def test_a_convolution_takes_its_padding(pad, value, stride, groups):
    def fn(x, weight):
        x = functional.pad(functional.relu6(x), pad, value=value)
        return functional.conv2d(x, weight, stride=stride, groups=groups).relu()

    x = torch.randn(2, 8, 13, 21)
    weight = torch.randn(8, 8 // groups, 3, 3)
    compiled = torch.compile(fn, backend="kiln", dynamic=False, options={"fallback": "raise"})
    assert_same(
        gradients(compiled, x, weight),
        gradients(fn, x, weight),
        gradients(fn, x.double(), weight.double()),
        1e-4,
    )
    assert_same(compiled(x, weight), fn(x, weight), fn(x.double(), weight.double()), 1e-4)
    for line in kernels_of(fn, x, weight).splitlines():
        assert not line.endswith(": constant_pad_nd"), line


@pytest.mark.parametrize("stride", [1, 2])
def test_pooling_takes_its_padding(stride):
    def fn(x):
        x = functional.pad(x.sigmoid(), (0, 1, 2, 1), value=float("-inf"))
        return functional.max_pool2d(x, 3, stride)

    x = torch.randn(2, 8, 15, 19)
    compiled = torch.compile(fn, backend="kiln", dynamic=False, options={"fallback": "raise"})
    assert_same(gradients(compiled, x), gradients(fn, x), gradients(fn, x.double()), 1e-5)
    assert ": constant_pad_nd\n" not in kernels_of(fn, x) + "\n"


@pytest.mark.parametrize("groups", [1, 8])
def test_sizes_may_be_symbols(groups):
    def fn(x, weight):
        return functional.conv2d(functional.pad(x, (1, 2, 0, 1), value=2.0), weight, groups=groups)

    weight = torch.randn(8, 8 // groups, 3, 3)
    compiled = torch.compile(fn, backend="kiln", dynamic=True, options={"fallback": "raise"})
    for height, width in ((5, 7), (16, 9), (33, 64)):
        x = torch.randn(2, 8, height, width)
        assert_same(compiled(x, weight), fn(x, weight), fn(x.double(), weight.double()), 1e-4)
    assert kiln_torch.stats()["fallbacks"] == []


def test_what_nothing_is_added_to_is_a_copy():
    def fn(x):
        y = functional.pad(x, (0, 0, -1, 0))
        x.add_(1)
        return y

    x = torch.randn(4, 5)
    expected = x[1:].clone()
    given = x.clone()
    compiled = torch.compile(fn, backend="kiln", dynamic=False, options={"fallback": "raise"})
    result = compiled(given)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    torch.testing.assert_close(given, x + 1, rtol=0, atol=0)
    result.zero_()
    torch.testing.assert_close(given, x + 1, rtol=0, atol=0)


def test_padding_in_other_types():
    def fn(x, weight):
        return functional.conv2d(functional.pad(x, (0, 1, 0, 1)), weight, stride=2, groups=8)

    x, weight = torch.randn(2, 8, 14, 14), torch.randn(8, 1, 3, 3)
    compiled = torch.compile(fn, backend="kiln", dynamic=False, options={"fallback": "raise"})
    for dtype, tolerance in ((torch.bfloat16, 2e-2), (torch.float64, 1e-9)):
        args = x.to(dtype), weight.to(dtype)
        assert_same(compiled(*args), fn(*args), fn(*(a.double() for a in args)), tolerance)
