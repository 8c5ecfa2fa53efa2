"""Norms of vectors run natively and are eager's, with their gradients."""

import copy

import pytest
import torch
from compare import assert_same

import kiln_torch

F = torch.nn.functional
ORDERS = [0, 0.5, 1, 2, 3, -1, -2.5, torch.inf, -torch.inf]


def compiled(fn, dynamic=False):
    torch._dynamo.reset()
    kiln_torch.reset()
    return torch.compile(fn, backend="kiln", dynamic=dynamic, options={"fallback": "raise"})


def check(fn, x, run=None):
    results = []
    for call in (fn, run or compiled(fn)):
        leaf = x.detach().clone().requires_grad_()
        outs = call(leaf)
        weights = [torch.linspace(0.5, 1.5, out.numel()).view(out.shape) for out in outs]
        sum((out * weight).sum() for out, weight in zip(outs, weights, strict=True)).backward()
        results.append([*outs, leaf.grad])
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float64: 1e-9}.get(x.dtype, 2e-5)
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    assert "aten.linalg_vector_norm.default" not in kiln_torch.stats()["library_ops"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("order", ORDERS)
def test_orders(order, dtype):
    torch.manual_seed(0)
    norm = torch.linalg.vector_norm

    def fn(x):
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        return (
            norm(x, order),
            norm(x, order, dim=(0, -1)),
            norm(x, order, dim=1, keepdim=True, dtype=wide),
            norm(x[0, 0, 0], order),
        )

    signs = torch.randn(3, 5, 7).sign()
    check(fn, (signs * (0.25 + torch.rand(3, 5, 7))).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normalized_rows_of_any_number(dtype):
    torch.manual_seed(0)

    def fn(x):
        rows = F.normalize(x, dim=-1)
        return rows @ rows.t(), x.norm(dim=0), torch.renorm(x, 2, 0, 1.0)

    run = compiled(fn, dynamic=True)
    for rows in (4, 9, 1, 17):
        check(fn, torch.randn(rows, 11).to(dtype), run)


def test_lone_and_no_elements_and_extremes():
    inf, nan = torch.inf, torch.nan
    norm = torch.linalg.vector_norm
    x = torch.tensor([[1e-30, 0.0], [1e30, 1.0], [inf, 1.0], [nan, 1.0], [-inf, nan], [0.0, -0.0], [3e-39, 0]])
    for order in ORDERS:

        def fn(x, order=order):
            lone = x[:, :1]
            none = [norm(x[:, :0], order, 1)] if 0 <= order < inf else []
            number = lone[0, 0]
            return norm(x, order, 1), norm(lone, order, 1), norm(number, order, -1, True), *none

        for actual, expected in zip(compiled(fn)(x), fn(x), strict=True):
            torch.testing.assert_close(actual, expected, equal_nan=True)
    for order in (-1, inf):
        for run in (norm, compiled(norm)):
            with pytest.raises(Exception, match="identity|empty"):
                run(torch.zeros(2, 0), order, 1)


def test_clipped_gradients():
    torch.manual_seed(0)
    shapes, results = [(3, 4), (5,), (2, 2, 2)], []
    gradients = [torch.randn(shape) for shape in shapes]
    for order in (1.0, 2.0, torch.inf):
        for wrap in (lambda f: f, compiled):
            parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
            clip = wrap(lambda p=parameters, o=order: torch.nn.utils.clip_grad_norm_(p, 0.5, o))
            results.append([clip(), *(parameter.grad for parameter in parameters)])
        for expected, actual in zip(*results[-2:], strict=True):
            torch.testing.assert_close(actual, expected)
    assert "aten.linalg_vector_norm.default" not in kiln_torch.stats()["library_ops"]


def test_complex_elements_keep_torchs_own():
    x = torch.randn(4, 3, dtype=torch.complex64)
    fn = lambda x: (torch.linalg.vector_norm(x, dim=1), x.norm(), torch.linalg.norm(x, "fro"))
    for actual, expected in zip(compiled(fn)(x), fn(x), strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name, dim", [("weight", 0), ("weight", 2), ("weight", None), ("bias", 0)]
)
def test_weights_normalized_by_their_norm(dtype, name, dim):
    """A step natively, as exact as eager's beside float64."""
    torch.manual_seed(0)
    model = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(4, 6, 3), name, dim=dim)
    x = torch.randn(5, 4, 9)
    run = compiled(lambda model, x: model(x))
    results = []
    for call, kind in (
        (lambda model, x: model(x), torch.float64),
        (lambda model, x: model(x), dtype),
        (run, dtype),
    ):
        ours, leaf = copy.deepcopy(model).to(kind), x.to(dtype).to(kind).requires_grad_()
        with torch.no_grad():
            for parameter in ours.parameters():
                parameter.copy_(parameter.to(dtype))
        out = call(ours, leaf)
        (out * torch.linspace(0.5, 1.5, out.numel(), dtype=kind).view(out.shape)).sum().backward()
        results.append([out, leaf.grad, *(parameter.grad for parameter in ours.parameters())])
    exact, *rounded = results
    tol = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float64: 1e-9}.get(dtype, 2e-5)
    assert_same(rounded[1], rounded[0], exact, tol=tol)
    assert not [op for op in kiln_torch.stats()["library_ops"] if "weight_norm" in op]
