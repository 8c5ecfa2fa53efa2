"""Margin losses: of lists of labels that end early, of one sample, and where a margin is exactly met."""

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same

import kiln_torch

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def check(loss, x, dynamic=False):
    """The loss of `x` and its gradient, against eager and float64."""
    found = []
    compiled = torch.compile(loss, backend="kiln", dynamic=dynamic, options={"fallback": "raise"})
    for run, leaf in ((compiled, x.clone()), (loss, x.clone()), (loss, x.double().clone())):
        leaf.requires_grad_()
        out = run(leaf)
        out.sum().backward()
        found.append((out.detach(), leaf.grad))
    assert_same(*found, tol=TOLERANCE[x.dtype])
    assert kiln_torch.stats()["library_ops"] == {}


def labels(samples, classes):
    """Of each sample some classes, in any order; one sample has none, one all, others end at -1."""
    order = torch.rand(samples, classes).argsort(1)
    count = torch.arange(samples) % (classes + 1)
    target = torch.where(torch.arange(classes) < count[:, None], order, -1)
    target[2, -1] = 0  # behind the end: no label
    return target


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_labels_end_at_the_first_negative_one(dtype, reduction):
    torch.manual_seed(0)
    target = labels(9, 7)
    x = (torch.randn(9, 7) * 2).to(dtype)
    check(lambda x: F.multilabel_margin_loss(x, target, reduction=reduction), x)
    check(lambda x: F.multilabel_margin_loss(x, target[3], reduction=reduction), x[3].clone())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_margin_to_one_class(p, weighted, reduction):
    torch.manual_seed(0)
    target, weight = torch.randint(0, 5, (8,)), torch.rand(5) if weighted else None

    def loss(x, target):
        w = None if weight is None else weight.to(x.dtype)
        return F.multi_margin_loss(x, target, p, 0.7, w, reduction=reduction)

    check(lambda x: loss(x, target), torch.randn(8, 5))
    check(lambda x: loss(x, target[3]), torch.randn(5))


def test_a_margin_that_is_met_exactly_has_no_gradient():
    x = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, -1.0]])
    target = torch.tensor([[1, -1, 0], [0, -1, 2]])
    check(lambda x: F.multilabel_margin_loss(x, target), x)
    check(lambda x: F.multi_margin_loss(x, target[:, 0]), x)


def test_numbers_of_samples_that_change():
    for samples in (5, 9, 3):
        target = labels(samples, 4)
        check(lambda x, t=target: F.multilabel_margin_loss(x, t), torch.randn(samples, 4), True)
        check(lambda x, t=target: F.multi_margin_loss(x, t[:, 0].clamp(0)), torch.randn(samples, 4), True)


def test_a_label_outside_is_an_error():
    run = torch.compile(F.multilabel_margin_loss, backend="kiln")
    with pytest.raises((IndexError, RuntimeError)):
        run(torch.randn(2, 3), torch.tensor([[0, 3, -1], [1, -1, -1]]))
