"""Running sums, products and extremes are native; float32 as exact as eager's, which adds in double."""

import pytest
import torch

import kiln_torch


def compiled(fn, **options):
    kiln_torch.reset()
    return torch.compile(
        fn, backend="kiln", dynamic=False, options={"fallback": "raise", **options}
    )


def check(fn, *args, tolerance=1e-6):
    expected = fn(*args)
    actual = compiled(fn)(*args)
    assert kiln_torch.stats()["library_ops"] == {}
    torch.testing.assert_close(
        actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=True
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_each_scan_is_eagers(dtype, dim):
    torch.manual_seed(0)
    x = (torch.randn(4, 37, 5) * 2).to(dtype)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-6

    def fn(x):
        out = (x.cumsum(dim), x.sign().cumprod(dim), *x.cummax(dim), *x.cummin(dim))
        if dtype.is_floating_point:
            return *out, x.logcumsumexp(dim)
        narrow = x.to(torch.int32).cumsum(dim, dtype=torch.int32)
        return *out, x.cumsum(dim, dtype=torch.float32), (x > 0).cumsum(dim), narrow

    check(fn, x, tolerance=tolerance)


def test_long_sums_are_near_the_exact_one():
    torch.manual_seed(0)
    x = torch.rand(300_000)
    exact = x.double().cumsum(0)
    error = (compiled(lambda x: x.cumsum(0))(x).double() - exact).abs() / exact
    assert error.max() < 1e-7


def test_scans_fuse_with_what_is_around_them():
    x = torch.randn(6, 64)

    def fn(x):
        nucleus = ((x * 2).softmax(-1).cumsum(-1) < 0.9).float() * x
        return nucleus, x.cumsum(-1).sum(-1), x.cumsum(-1) + x.cumsum(0)

    check(fn, x, tolerance=1e-5)


def test_gradients():
    x = torch.randn(3, 11, requires_grad=True)

    def loss(x):
        return (x.cumsum(1).square() + x.logcumsumexp(1) + x.cummax(1)[0]).sum()

    (expected,) = torch.autograd.grad(loss(x), x)
    (actual,) = torch.autograd.grad(compiled(loss)(x), x)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_masks_source_is_dealt_out_in_order():
    x, source = torch.randn(5, 6), torch.randn(40)
    mask = torch.randn(5, 6) > 0
    check(lambda x, m, s: (x.masked_scatter(m, s) * 2, x.masked_scatter(m[0], s)), x, mask, source)
    with pytest.raises(IndexError):
        compiled(lambda x, s: x.masked_scatter(x == x, s))(x, source[:7])


def test_sizes_may_be_symbols_and_nan_stays():
    fn = torch.compile(
        lambda x: (x.cumsum(-1), *x.cummax(0)),
        backend="kiln", dynamic=True, options={"fallback": "raise"},
    )  # fmt: skip
    for rows, columns in ((3, 7), (9, 40)):
        x = torch.randn(rows, columns)
        x[1, 2] = torch.nan
        for actual, expected in zip(fn(x), (x.cumsum(-1), *x.cummax(0)), strict=True):
            torch.testing.assert_close(actual, expected, equal_nan=True)
