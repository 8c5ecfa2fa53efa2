"""Gradients through convolutions and poolings, forward and backward graphs together, against float64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same

import kiln_torch


def gradients(fn, args):
    """The output and the gradient of every argument that wants one."""
    args = [a.detach().requires_grad_(a.requires_grad) for a in args]
    out = fn(*args)
    # Not all ones: a permuted gradient has to show.
    out.backward(torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape))
    return [out.detach()] + [a.grad for a in args if a.requires_grad]


def compare(fn, args, tol=1e-4):
    compiled = torch.compile(fn, backend="kiln", options={"fallback": "raise"}, dynamic=False)
    for some in args:
        reference = gradients(fn, [a.detach().double().requires_grad_(a.requires_grad) for a in some])
        assert_same(gradients(compiled, some), gradients(fn, some), reference, tol)
    assert kiln_torch.stats()["library_ops"] == {}


def leaf(*sizes, dtype=torch.float32, wants=True):
    return torch.randn(*sizes).to(dtype).requires_grad_(wants)


@pytest.mark.parametrize("wanted", [(0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1)])
def test_results_that_nobody_wants_are_left_out(wanted):
    x, w, b = (bool(i) for i in wanted)
    args = (leaf(2, 5, 9, 8, wants=x), leaf(6, 5, 3, 3, wants=w), leaf(6, wants=b))
    compare(lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), [args])


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3])
def test_one_sample_of_one_place(kernel, groups):
    args = (leaf(1, 8, kernel, kernel), leaf(12, 8 // groups, kernel, kernel), leaf(12))
    compare(lambda x, w, b: F.conv2d(x, w, b, groups=groups), [args])
    args = (leaf(1, 8, 1, 1), leaf(8, 12 // groups, kernel, kernel), leaf(12))
    compare(lambda x, w, b: F.conv_transpose2d(x, w, b, groups=groups), [args])


def test_a_new_batch_and_size_need_no_new_graph():
    net = torch.nn.Sequential(torch.nn.Conv2d(18, 8, 3, 2, 1), torch.nn.MaxPool2d(3, 2, 1))
    exact = copy.deepcopy(net).double()
    compiled = torch.compile(net, backend="kiln", options={"fallback": "raise"}, dynamic=True)

    def all_gradients(fn, module, x):
        module.zero_grad()
        return gradients(fn, [x]) + [p.grad.clone() for p in module.parameters()]

    for sizes in [(2, 18, 13, 16), (3, 18, 20, 17), (5, 18, 9, 31)]:
        x = leaf(*sizes)
        reference = all_gradients(exact, exact, x.detach().double().requires_grad_())
        expected = all_gradients(net, net, x)
        assert_same(all_gradients(compiled, net, x), expected, reference)
    assert kiln_torch.stats()["library_ops"] == {}
    assert kiln_torch.stats()["graphs"] == 2


def test_a_channels_last_gradient_keeps_its_layout():
    x = torch.randn(2, 16, 9, 8).to(memory_format=torch.channels_last).requires_grad_()
    compare(lambda x, w: F.conv2d(x, w, padding=1), [(x, leaf(6, 16, 3, 3))])


@pytest.mark.parametrize(("dtype", "tol"), [(torch.bfloat16, 2e-2), (torch.float16, 4e-3)])
def test_low_precision_accumulates_in_float32(dtype, tol):
    """A sum of 4096 equal terms: in bfloat16 it would stop at 256, in float16 at 2048."""
    x = torch.ones(1, 4, 64, 64, dtype=dtype, requires_grad=True)
    w = torch.full((4, 4, 1, 1), 0.25, dtype=dtype, requires_grad=True)
    compiled = torch.compile(F.conv2d, backend="kiln", options={"fallback": "raise"})
    compiled(x, w).backward(torch.ones(1, 4, 64, 64, dtype=dtype))
    assert torch.equal(w.grad, torch.full_like(w, 4096))
    compare(lambda x, w: F.conv2d(x, w, padding=1),
            [(leaf(2, 20, 9, 8, dtype=dtype), leaf(6, 20, 3, 3, dtype=dtype))], tol)


def test_a_small_network_trains_without_library_steps():
    def fn(x, w, u, v):
        x = F.relu(F.conv2d(x, w, padding=1))
        x = F.max_pool2d(x, 3, 2, 1)
        x = F.relu(F.conv2d(x, u, stride=2, padding=1, groups=2))
        x = F.conv_transpose2d(x, v, stride=2)
        return F.adaptive_avg_pool2d(F.avg_pool2d(x, 2, 1), (3, 2))

    compare(fn, [(leaf(2, 3, 20, 22), leaf(16, 3, 3, 3), leaf(24, 8, 3, 3), leaf(24, 5, 3, 3))])


POOLS = {  # kernel, stride, padding, dilation, ceil_mode
    "disjoint": (2, 2, 0, 1, False),
    "overlapping": (3, 2, 1, 1, False),
    "much": (5, 1, 2, 1, False),
    "gaps": (2, 3, 0, 1, False),
    "dilated": (3, 2, 1, 2, False),
    "ceil": (3, 2, 1, 1, True),
    "sides": ((3, 2), (2, 3), (1, 0), (1, 1), True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("pool", POOLS)
def test_gradients_of_the_largest_go_where_eagers_do(pool, order, dtype):
    kernel, stride, padding, dilation, ceil = POOLS[pool]

    def fn(x):
        return F.max_pool2d(x, kernel, stride, padding, dilation, ceil).relu() * 2

    # Ties, which the first one wins, a window of nothing but -inf, and NaN, which is the largest.
    x = torch.randint(-3, 4, (2, 16, 13, 18)).to(dtype)
    x[0, :, :6, :6] = -torch.inf
    x[1, ::3, 5, 7] = torch.nan
    compiled = torch.compile(fn, backend="kiln", options={"fallback": "raise"}, dynamic=False)
    for some in (x.to(memory_format=order), x[0]):
        some = some.clone(memory_format=torch.preserve_format).requires_grad_()
        ours, theirs = gradients(compiled, [some]), gradients(fn, [some])
        for a, e in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, e, equal_nan=True, rtol=5e-2 if dtype == torch.bfloat16 else 1e-5, atol=0)
    assert kiln_torch.stats()["library_ops"] == {}


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("with_padding", [False, True])
@pytest.mark.parametrize("pool", [p for p in POOLS if p not in ("dilated", "gaps")])
def test_gradients_of_means(pool, with_padding, order):
    kernel, stride, padding, _, ceil = POOLS[pool]
    compare(
        lambda x: F.avg_pool2d(x, kernel, stride, padding, ceil, with_padding).sin(),
        [(torch.randn(2, 16, 13, 18).to(memory_format=order).requires_grad_(),), (leaf(16, 13, 18),)],
    )


def test_gradients_of_poolings_of_any_size():
    def fn(x):
        return F.avg_pool2d(F.max_pool2d(x, 3, 2, 1), 3, 2, 1)

    compiled = torch.compile(fn, backend="kiln", options={"fallback": "raise"}, dynamic=True)
    for sizes in [(2, 8, 13, 18), (3, 8, 21, 16), (5, 8, 9, 30)]:
        x = leaf(*sizes)
        wide = x.detach().double().requires_grad_()
        assert_same(gradients(compiled, [x]), gradients(fn, [x]), gradients(fn, [wide]))
    assert kiln_torch.stats()["library_ops"] == {}
