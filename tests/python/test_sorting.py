"""Rows are sorted natively, in eager's order where that is defined."""

import pytest
import torch

import kiln_torch


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
)
def test_sorts_are_eagers(dtype):
    torch.manual_seed(0)
    x = (torch.randn(3, 130, 5) * 3).to(dtype)  # with ties, but for two of the types
    if dtype.is_floating_point:
        x[0, 3:40:7] = torch.nan
        x[1, 5], x[1, 9], x[1, 60] = torch.inf, -torch.inf, -0.0

    def fn(x):
        return (
            *x.sort(stable=True, dim=1), *torch.sort(x, stable=True, descending=True, dim=1),
            *x.sort(stable=True), x.argsort(dim=0, stable=True), x.transpose(0, 1).sort(0)[0],
        )  # fmt: skip

    compiled = torch.compile(fn, backend="kiln", dynamic=False, options={"fallback": "raise"})
    for actual, expected in zip(compiled(x), fn(x), strict=True):
        torch.testing.assert_close(
            actual, expected, rtol=0, atol=0, equal_nan=True, check_stride=True
        )
    assert kiln_torch.stats()["library_ops"] == {}


def compiled(fn, dynamic=False):
    torch._dynamo.reset()
    kiln_torch.reset()
    return torch.compile(fn, backend="kiln", dynamic=dynamic, options={"fallback": "raise"})


def numbers(sizes, dtype):
    """Random, without equal ones, but in small types."""
    count = torch.Size(sizes).numel()
    if dtype == torch.int64:
        return torch.randint(-(2**62), 2**62, sizes)
    x = torch.randperm(count) - count // 2
    return (x * 1e3).to(dtype).view(sizes) if dtype.is_floating_point else x.to(dtype).view(sizes)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int16]
)
def test_long_rows_are_eagers(dtype):
    torch.manual_seed(0)
    x = numbers((3, 1500), dtype)
    if dtype.is_floating_point:
        x[0, 3:400:7] = torch.nan
        x[1, 5], x[1, 9], x[1, 60] = torch.inf, -torch.inf, -0.0

    def fn(x):
        return (
            *x.sort(stable=True), *x.sort(stable=True, descending=True),
            *x.t().sort(stable=True, dim=0), x.argsort(stable=True), x.sort()[0], x.topk(700)[0],
            x.topk(9, largest=False)[0], x[:, :700].median(-1)[0], x.kthvalue(600)[0],
            torch.searchsorted(x[2].sort()[0], x[1, :5].clone()),
        )  # fmt: skip

    for actual, expected in zip(compiled(fn)(x), fn(x), strict=True):
        torch.testing.assert_close(
            actual, expected, rtol=0, atol=0, equal_nan=True, check_stride=True
        )
    assert kiln_torch.stats()["library_ops"] == {}


def test_results_without_ties_are_eagers_in_both():
    torch.manual_seed(0)
    x = numbers((4, 60), torch.float32)
    y = numbers((2, 900), torch.float64)
    y[1, 7] = y[1, 700] = torch.nan

    def fn(x, y):
        return [
            *x.sort(), *x.topk(5), *x.topk(60, dim=-1), *x.topk(2, dim=0, largest=False),
            *y.sort(descending=True), *y[:1].topk(3), *x.median(1, keepdim=True), *y.median(1),
            *x.kthvalue(7), *y[:1].kthvalue(880, keepdim=True), *x.msort(), x.quantile(0.3, 1),
        ]  # fmt: skip

    expected = fn(x, y)
    actual = compiled(fn)(x, y)
    assert kiln_torch.stats()["library_ops"] == {}
    for a, e in zip(actual, expected, strict=True):
        if not (a.dtype == torch.int64 and a.shape == y.shape):  # where two are NaN
            torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True, check_stride=True)


def test_equal_elements_are_taken_in_order():
    x = torch.zeros(2, 800).index_fill(1, torch.tensor([5, 400, 700]), 1.0)
    run = compiled(lambda x: (x.topk(4)[1], x[:, :450].topk(4)[1], x.sort(descending=True)[1]))
    long, short, order = run(x)
    assert long.tolist() == [[5, 400, 700, 0]] * 2
    assert short.tolist() == [[5, 400, 0, 1]] * 2
    assert order[0, :5].tolist() == [5, 400, 700, 0, 1]


def test_symbolic_lengths():
    run = compiled(lambda x: (*x.sort(stable=True), x.topk(3)[0]), dynamic=True)
    for length in (5, 700, 3, 1300):
        x = torch.randn(2, length)
        for actual, expected in zip(run(x), (*x.sort(stable=True), x.topk(3)[0]), strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert kiln_torch.stats()["library_ops"] == {}


def test_gradients():
    torch.manual_seed(0)
    x = torch.randn(4, 700, requires_grad=True)

    def fn(x):
        short = torch.sort(x[:, :90], stable=True)[0]
        long = (x * 2).topk(30)[0] * torch.arange(30.0)
        middle = x.median(1)[0]
        return (short * torch.arange(90.0)).sum() + x.sort(-1)[0][:, 3].sum() + (long.sum() + middle).sum()

    (expected,) = torch.autograd.grad(fn(x), x)
    (actual,) = torch.autograd.grad(compiled(fn)(x), x)
    torch.testing.assert_close(actual, expected)
    assert kiln_torch.stats()["library_ops"] == {}


def test_permutations_are_of_the_seed():
    def fn(n, dtype):
        return torch.randperm(n, dtype=dtype)

    run = compiled(fn)
    seen = []
    for n, dtype in [(1, torch.int64), (2, torch.int64), (100, torch.int32), (3000, torch.int64)]:
        torch.manual_seed(3)
        first, second = run(n, dtype), run(n, dtype)
        torch.manual_seed(3)
        assert torch.equal(run(n, dtype), first)
        assert first.dtype == dtype and torch.equal(first.sort()[0], torch.arange(n, dtype=dtype))
        assert n < 100 or not torch.equal(first, second)
        seen.append(first.double())
    assert "aten.randperm.default" not in kiln_torch.stats()["library_ops"]
    # Each number may stand anywhere: its distance from its place is n / 3 in the mean.
    assert (seen[-1] - torch.arange(3000)).abs().mean() == pytest.approx(1000, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize("length", [1, 7, 64])
def test_searches(dtype, length):
    torch.manual_seed(0)
    rows = (torch.randn(3, length) * 9).to(dtype).sort()[0]
    values = torch.cat([rows[:, ::2], (torch.randn(3, 5) * 9).to(dtype)], 1)  # some are there
    if dtype.is_floating_point:
        rows[0, -1] = values[1, 0] = values[2, 1] = torch.nan
        values[0, 0], values[0, 1] = torch.inf, -torch.inf

    def fn(rows, values):
        return (
            torch.searchsorted(rows, values), torch.searchsorted(rows, values, right=True),
            torch.searchsorted(rows[1], values.t(), side="right", out_int32=True),
            torch.bucketize(values, rows[2]), torch.bucketize(values, rows[2], right=True),
        )  # fmt: skip

    for actual, expected in zip(compiled(fn)(rows, values), fn(rows, values), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, check_stride=True)
    assert kiln_torch.stats()["library_ops"] == {}


def test_histograms():
    torch.manual_seed(0)
    x = torch.randn(40, 30)

    def fn(x):
        return x.histc(10, -1, 1), x.histc(7), x.double().histc(100, 0, 3), x.new_ones(5).histc(4)

    for actual, expected in zip(compiled(fn)(x), fn(x), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert kiln_torch.stats()["library_ops"] == {}
