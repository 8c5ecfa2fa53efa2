"""Short rows are sorted natively, in eager's order."""

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


def test_gradients_and_long_rows():
    x = torch.randn(4, 700, requires_grad=True)

    def fn(x):
        short = torch.sort(x[:, :90], stable=True)[0]
        return (short * torch.arange(90.0)).sum() + x.sort(-1)[0][:, 3].sum()

    compiled = torch.compile(fn, backend="kiln", dynamic=False, options={"fallback": "raise"})
    (expected,) = torch.autograd.grad(fn(x), x)
    (actual,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(actual, expected)
    assert kiln_torch.stats()["library_ops"] == {"aten.sort.default": 1}
