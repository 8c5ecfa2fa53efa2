"""What a function computes twice is computed once, and nobody can tell."""

import pytest
import torch
from compare import assert_same, double_reference

import kiln_torch

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
MERGED = "both compute the same"


def turned(q, positions):
    """Rotates pairs of q, of [heads, length, 16], by angles that it makes again at each call."""
    rates = 100.0 ** (-torch.arange(0, 8) / 8)
    angles = positions[:, None].float() * rates
    cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
    a, b = q.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def layers(x, positions, weights):
    for weight in weights:
        q, k = turned(x @ weight, positions), turned(x, positions)
        mask = positions[:, None] >= positions
        scores = (q @ k.transpose(-1, -2)).masked_fill(~mask, float("-inf"))
        x = x + scores.softmax(-1) @ x
    return x


def layer_arguments(dtype, length=12):
    weights = [torch.randn(16, 16).mul(0.2).to(dtype) for _ in range(3)]
    return torch.randn(2, length, 16).to(dtype), torch.arange(length), weights


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_layers_that_make_the_same_tables(dtype, dynamic):
    compiled = torch.compile(layers, backend="kiln", dynamic=dynamic)
    for length in (12, 20) if dynamic else (12,):
        arguments = layer_arguments(dtype, length)
        with torch.no_grad():
            expected = layers(*arguments)
            reference = double_reference(layers, arguments)
            assert_same(compiled(*arguments), expected, reference)
        x, positions, weights = arguments
        actual = []
        for fn in (compiled, layers):
            leaf = x.clone().requires_grad_()
            leaves = [leaf, *(w.clone().requires_grad_() for w in weights)]
            actual.append(torch.autograd.grad(fn(leaf, positions, leaves[1:]).float().sum(), leaves))
        assert_same(*actual, tol=1e-3 if dtype == torch.float32 else 5e-2)
    assert kiln_torch.stats()["fallbacks"] == []


def test_tables_are_made_once():
    with torch.no_grad():
        text = kiln_torch.explain(layers, *layer_arguments(torch.float32))
    assert text.count(MERGED) >= 5


def compiled_and_eager(fn, *arguments):
    copies = [a.clone() for a in arguments]
    actual = torch.compile(fn, backend="kiln", options={"fallback": "raise"})(*copies)
    expected = fn(*(own := [a.clone() for a in arguments]))
    assert_same(actual, expected)
    assert_same(copies, own)
    return actual, expected


def shared(outputs):
    """Which pairs of outputs are one memory."""
    storages = [out.untyped_storage().data_ptr() for out in outputs]
    return [[a == b for b in storages] for a in storages]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x.exp(), x.exp()),
        lambda x: (x.exp().t(), x.exp()),
        lambda x: (x.exp().view(-1), x.exp().view(-1)[3:]),
        lambda x: ((a := x.exp()), a.t(), x.exp()),
        lambda x: ((a := x.exp()), a.t(), a.t(), x.exp().t()),
        lambda x: (x.t(), x.t(), x),
        lambda x: (x.sum(0), x.sum(0) + 1, x.sum(0)),
        lambda x: (x.exp().expand(3, 6, 6), x.exp().expand(3, 6, 6)),
        lambda x: (x.clone(), x.clone(), x + 0),
        lambda x: (x.softmax(0), x.softmax(0), x.softmax(0) @ x),
        lambda x: (torch.zeros(4), torch.zeros(4), torch.arange(4), torch.arange(4)),
    ],
)
def test_outputs_share_memory_where_eagers_do(fn):
    actual, expected = compiled_and_eager(fn, torch.randn(6, 6))
    assert shared(actual) == shared(expected)
    # What a user writes into one is seen in eager's others only.
    for i in range(len(actual)):
        if 0 in actual[i].stride():
            continue
        actual[i].add_(1)
        expected[i].add_(1)
        assert_same(actual, expected)


@pytest.mark.parametrize("size", [8, 70000])
def test_an_argument_written_between_two_reads(size):
    def fn(x, w):
        before = x.cos() * w.exp()
        x.add_(1)
        after = x.cos() * w.exp()
        w.copy_(x.cos())
        return before, after, w.exp(), x.cos()

    compiled_and_eager(fn, torch.randn(size), torch.randn(size))


def test_arguments_that_get_the_same_values():
    def fn(x, a, b):
        a.copy_(x.tanh())
        b.copy_(x.tanh())
        return x.tanh() + a + b

    compiled_and_eager(fn, torch.randn(300), torch.randn(300), torch.randn(300))


def test_random_numbers_are_drawn_each_time():
    def fn(x):
        drop = torch.nn.functional.dropout
        first = torch.rand_like(x), torch.rand_like(x), drop(x, 0.5), drop(x, 0.5)
        return *first, torch.randperm(64), torch.randperm(64)

    out = torch.compile(fn, backend="kiln", options={"fallback": "raise"})(torch.ones(64, 64))
    for first, second in zip(out[::2], out[1::2], strict=True):
        assert not torch.equal(first, second)


def test_numbers_that_compare_equal_are_others():
    def fn(x, n):
        zero, minus = x * 0.0, x * -0.0
        return (
            (1 / (zero + torch.full_like(x, 0.0))).sum(),
            (1 / (minus + torch.full_like(x, -0.0))).sum(),
            torch.copysign(x, torch.tensor(0.0)).sum(0),
            torch.copysign(x, torch.tensor(-0.0)).sum(0),
            (n + 1).sum(0),
            (n + 1.0).sum(0),
            (n + True).sum(0),
            n.sum(0, dtype=torch.int32),
            n.sum(0),
            torch.full((3,), 1).cumsum(0),
            torch.full((3,), 1.0).cumsum(0),
            torch.full((3,), True).cumsum(0),
        )

    compiled_and_eager(fn, torch.rand(5, 5) + 1, torch.arange(25).view(5, 5))


def test_layouts_are_part_of_a_value():
    def fn(x):
        first = (x * 2).contiguous()
        second = (x * 2).contiguous(memory_format=torch.channels_last)
        return first, second, first.exp().sum(1), second.exp().sum(1)

    actual, expected = compiled_and_eager(fn, torch.randn(2, 3, 4, 5))
    assert [out.stride() for out in actual] == [out.stride() for out in expected]


def test_types_are_part_of_a_value():
    def fn(x, w):
        short = x.bfloat16() @ w.bfloat16(), x.half() @ w.half(), x.bfloat16().T @ w.bfloat16()
        return *short, x.double() @ w.double()

    compiled_and_eager(fn, torch.randn(16, 16), torch.randn(16, 16))


def test_a_division_by_zero_raises_still():
    def fn(a, b):
        return (a // b).sum(), (a // b).cumsum(0), (a // b)[1:].max()

    call = torch.compile(fn, backend="kiln", options={"fallback": "raise"})
    a, b = torch.arange(40), torch.arange(1, 41)
    assert_same(call(a, b), fn(a, b))
    b[0] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        call(a, b)


def test_what_training_keeps_of_both():
    """Both of two equal activations are kept for the backward pass by eager; gradients add up."""

    def fn(x, w):
        first, second = torch.tanh(x @ w), torch.tanh(x @ w)
        return (first * second).sum() + (first.exp() * x.sum()).sum()

    grads = []
    for call in (torch.compile(fn, backend="kiln", options={"fallback": "raise"}), fn):
        torch.manual_seed(3)
        leaves = [torch.randn(24, 24).requires_grad_(), torch.randn(24, 24).requires_grad_()]
        grads.append((call(*leaves), *torch.autograd.grad(call(*leaves), leaves)))
    assert_same(*grads, tol=1e-3)
