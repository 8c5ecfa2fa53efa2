"""Attention in steps of training and with masks: masks of dropout, windows, what lies in memory."""

import math

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same

import kiln_torch


def by_operator(q, k, v, mask=None, p=0.0, is_causal=False):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p, is_causal=is_causal)


def by_hand(q, k, v, mask=None, p=0.0):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return F.dropout(torch.softmax(scores, -1), p) @ v


def window(length, width):
    row = torch.arange(length)[:, None]
    col = torch.arange(length)[None]
    return (col <= row) & (col > row - width)


def inputs_of(length, dtype=torch.float32, heads=8, width=16, value_width=16):
    sizes = [(1, heads, length, width)] * 2 + [(1, heads, length, value_width)]
    return [torch.randn(size, dtype=dtype).requires_grad_() for size in sizes]


def step(fn, inputs):
    """The outputs and gradients of inputs, and elements of the largest tensor kept between."""
    kept = [0]
    given = {t.data_ptr() for t in inputs}

    def keep(t):
        kept.append(0 if t.data_ptr() in given else t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        out = fn(*inputs)
    grad = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    return [out, *torch.autograd.grad(out, inputs, grad)], max(kept)


def dropped_by(compiled, length, dtype):
    """Which weights a call with this seed keeps: read off from values that are a unit matrix."""
    q, k, _ = inputs_of(length, dtype)
    q, k = q.detach() * 0.1, k.detach() * 0.1  # no weight is zero by itself
    unit = torch.eye(length, dtype=dtype).expand(1, 8, length, length).clone().requires_grad_()
    torch.manual_seed(5)
    return compiled(q.requires_grad_(), k.requires_grad_(), unit) != 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn", [by_operator, by_hand])
def test_dropout_has_one_mask_forward_and_backward(fn, dtype):
    p, length = 0.3, 200
    compiled = torch.compile(lambda q, k, v: fn(q, k, v, None, p), backend="kiln")
    keep = dropped_by(compiled, length, dtype)
    assert abs(keep.double().mean() - (1 - p)) < 0.01
    inputs = inputs_of(length, dtype, value_width=length)
    torch.manual_seed(5)
    actual, _ = step(compiled, inputs)

    def exact(q, k, v):
        weights = torch.softmax(q @ k.transpose(-1, -2) / 4, -1)
        return (weights * keep / (1 - p)) @ v

    expected, _ = step(exact, [t.detach().double().requires_grad_() for t in inputs])
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    for a, e in zip(actual, expected, strict=True):
        assert (a.double() - e).abs().max() < tolerance * e.abs().max()
    again, _ = step(compiled, inputs)
    assert not torch.equal(again[0], actual[0])
    torch.manual_seed(5)
    again, _ = step(compiled, inputs)
    assert all(torch.equal(a, b) for a, b in zip(actual, again, strict=True))
    assert kiln_torch.stats()["fallbacks"] == []
    assert set(kiln_torch.stats()["library_ops"]) <= {"aten.randint.low"}  # the seed


@pytest.mark.parametrize("fn", [by_operator, by_hand])
def test_no_weights_and_no_mask_of_dropout_are_kept(fn):
    compiled = torch.compile(lambda q, k, v: fn(q, k, v, None, 0.1), backend="kiln")
    _, largest = step(compiled, inputs_of(128))
    assert largest < 8 * 128 * 128


@pytest.mark.parametrize("stream", [0, 3])
def test_eager_keeps_what_programs_keep(stream):
    """One of the two passes may run eager: while its program is on its way, or where it fails."""
    like, seed = torch.empty(3, 70, 65), torch.tensor([0x7EDC_BA98_8765_4321])

    def keep(like, seed):
        return torch.ops.kiln.keep(like, seed, stream, 0.3)

    expected = keep(like, seed)
    assert abs(expected.double().mean() - 0.7) < 0.02
    assert torch.equal(torch.compile(keep, backend="kiln")(like, seed), expected)
    assert kiln_torch.stats()["fallbacks"] == [] and kiln_torch.stats()["library_ops"] == {}


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_and_of_all(p):
    inputs = inputs_of(64)
    compiled = torch.compile(lambda q, k, v: by_hand(q, k, v, None, p), backend="kiln")
    actual, _ = step(compiled, inputs)
    expected, _ = step(lambda q, k, v: by_hand(q, k, v, None, p), inputs)
    assert_same(actual, expected)


def test_each_dropout_of_a_graph_has_its_own_mask():
    def twice(q, k, v):
        return by_hand(q, k, v, None, 0.5), by_hand(q, k, v, None, 0.5)

    inputs = inputs_of(128)
    first, second = torch.compile(twice, backend="kiln")(*inputs)
    assert not torch.equal(first, second)


def test_weights_that_the_caller_gets_are_kept():
    def attend(q, k, v):
        weights = torch.softmax(q @ k.transpose(-1, -2), -1)
        return weights @ v, weights

    inputs = inputs_of(96)
    ours, theirs = torch.compile(attend, backend="kiln")(*inputs), attend(*inputs)
    assert_same(ours, theirs)
    expected = torch.autograd.grad(sum(t.square().sum() for t in theirs), inputs)
    actual = torch.autograd.grad(sum(t.square().sum() for t in ours), inputs)
    assert_same(list(actual), list(expected))


TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}
CASES = {
    "plain": lambda q, k, v: by_operator(q, k, v),
    "causal": lambda q, k, v: by_operator(q, k, v, is_causal=True),
    "window": lambda q, k, v: by_operator(q, k, v, window(q.shape[2], 70)),
    "added window": lambda q, k, v: by_operator(
        q, k, v, torch.zeros(()).masked_fill(~window(q.shape[2], 70), -math.inf).to(q.dtype)
    ),
    "by hand": lambda q, k, v: by_hand(q, k, v),
    "window by hand": lambda q, k, v: by_hand(q, k, v, window(q.shape[2], 70)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_long_rows(name, dtype):
    """One head's scores fit no second-level cache: gradients sum over tiles."""
    fn = CASES[name]
    inputs = inputs_of(400, dtype)
    actual, largest = step(torch.compile(fn, backend="kiln"), inputs)
    expected, _ = step(fn, inputs)
    exact, _ = step(fn, [t.detach().double().requires_grad_() for t in inputs])
    assert_same(actual, expected, exact, tol=TOLERANCE[dtype])
    assert largest < 400 * 400, "the forward pass keeps weights"
    stats = kiln_torch.stats()
    assert stats["fallbacks"] == [] and stats["library_ops"] == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["plain", "causal"])
@pytest.mark.parametrize("length", [65, 400])
def test_results_of_16_bits_are_no_farther_from_exact_than_eagers(length, name, dtype):
    fn = CASES[name]
    inputs = inputs_of(length, dtype)
    compiled = torch.compile(fn, backend="kiln", options={"fallback": "raise"})
    ours, theirs = step(compiled, inputs)[0], step(fn, inputs)[0]
    exact, _ = step(fn, [t.detach().double().requires_grad_() for t in inputs])
    for what, a, e, x in zip(("out", "dQ", "dK", "dV"), ours, theirs, exact, strict=True):
        error, most = (a - x).square().mean().sqrt(), (e - x).square().mean().sqrt()
        assert error <= 1.05 * most, f"{what}: {error:.3g}, eager's {most:.3g}"


@pytest.mark.parametrize("name", ["causal", "window", "window by hand"])
def test_rows_of_any_length(name):
    fn = CASES[name]
    compiled = torch.compile(fn, backend="kiln", dynamic=True)
    for length in (400, 130, 1):
        inputs = inputs_of(length)
        actual, _ = step(compiled, inputs)
        expected, _ = step(fn, inputs)
        exact, _ = step(fn, [t.detach().double().requires_grad_() for t in inputs])
        assert_same(actual, expected, exact, tol=1e-4)
    assert kiln_torch.stats()["fallbacks"] == []
