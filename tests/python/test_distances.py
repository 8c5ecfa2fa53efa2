"""Distances run natively and are eager's, with their gradients."""

import pytest
import torch

import kiln_torch

F = torch.nn.functional


def check(fn, *args, tolerance=1e-5):
    torch._dynamo.reset()
    kiln_torch.reset()
    run = torch.compile(fn, backend="kiln", dynamic=False, options={"fallback": "raise"})
    expected, actual = fn(*args), run(*args)
    floats = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance, check_stride=True)
    if floats:
        losses = [sum((r.float() * r.detach().cos().float()).sum() for r in x) for x in (actual, expected)]
        pairs = zip(*(torch.autograd.grad(loss, floats) for loss in losses), strict=True)
        for a, e in pairs:
            torch.testing.assert_close(a, e, rtol=5 * tolerance, atol=5 * tolerance)
    assert kiln_torch.stats()["library_ops"] == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [0.0, 1.0, 1.7, 2.0, 3.0, torch.inf])
def test_distances(dtype, p):
    torch.manual_seed(0)
    x = torch.randn(2, 6, 3, dtype=dtype, requires_grad=True)
    y = torch.randn(4, 3, dtype=dtype, requires_grad=True)
    check(lambda x, y: (torch.cdist(x, y, p), F.pdist(x[0], p)), x, y)


def test_many_rows_are_a_product():
    torch.manual_seed(0)
    check(lambda x, y: (torch.cdist(x, y),), torch.randn(40, 8), torch.randn(30, 8), tolerance=1e-4)
