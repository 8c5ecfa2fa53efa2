"""Operators with effects: torch orders them by tokens, which the graph leaves out."""

import pytest
import torch
from compare import assert_same

import kiln_torch


def matrices(*shape, positive=False):
    torch.manual_seed(11)
    a = torch.randn(*shape, shape[-1])
    eye = torch.eye(shape[-1])
    return a @ a.transpose(-1, -2) + eye if positive else a + 4 * eye


def inverse(x):
    return torch.linalg.inv(x) * 2


def cholesky(x):
    return torch.linalg.cholesky(x).sum(-1)


def solve(x):
    return torch.linalg.solve(x, x.transpose(-1, -2) + 1)


def several(x):
    y = torch.linalg.inv(x + 1)
    return y, torch.linalg.cholesky(x) @ y, torch.linalg.inv(y)


@pytest.mark.parametrize("fn", [inverse, cholesky, solve, several])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(5,), (3, 4)])
def test_checked_linear_algebra_runs_and_equals_eager(fn, dynamic, shape):
    x = matrices(*shape, positive=True)
    compiled = torch.compile(fn, backend="kiln", dynamic=dynamic)
    for _ in range(2):
        assert_same(compiled(x), fn(x), fn(x.double()))
    stats = kiln_torch.stats()
    assert stats["fallbacks"] == [] and stats["graphs"] == 1
    assert stats["library_ops"]["aten._linalg_check_errors.default"] >= 1


@pytest.mark.parametrize("fn", [inverse, cholesky, solve])
def test_a_failed_check_raises_what_eager_raises(fn):
    compiled = torch.compile(fn, backend="kiln")
    good, bad = matrices(4, positive=True), torch.zeros(4, 4)
    assert_same(compiled(good), fn(good))
    with pytest.raises(torch.linalg.LinAlgError) as eager:
        fn(bad)
    with pytest.raises(torch.linalg.LinAlgError) as ours:
        compiled(bad)
    assert str(ours.value) == str(eager.value)
    assert_same(compiled(good), fn(good))
    assert kiln_torch.stats()["fallbacks"] == []


def test_a_check_whose_result_nobody_uses_still_raises():
    def fn(x):
        torch.linalg.inv(x)
        return x + 1

    with pytest.raises(torch.linalg.LinAlgError):
        torch.compile(fn, backend="kiln")(torch.zeros(3, 3))
    assert kiln_torch.stats()["fallbacks"] == []


@pytest.mark.parametrize("fn", [inverse, cholesky, solve])
def test_gradients_equal_eagers(fn):
    x = matrices(4, positive=True).requires_grad_()
    (expected,) = torch.autograd.grad(fn(x).square().sum(), x)
    (actual,) = torch.autograd.grad(torch.compile(fn, backend="kiln")(x).square().sum(), x)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert kiln_torch.stats()["fallbacks"] == []


def test_parameters_keep_their_role_behind_a_token():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(matrices(4))

        def forward(self, x):
            return torch.linalg.inv(self.weight) @ x

    model, x = Model(), torch.randn(4, 3)
    with torch.no_grad():
        compiled = torch.compile(model, backend="kiln")
        assert_same(compiled(x), model(x))
        model.weight.mul_(2)
        assert_same(compiled(x), model(x))
    assert kiln_torch.stats()["fallbacks"] == []
