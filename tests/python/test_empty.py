"""Tensors of no elements: values and gradients are eager's, and nothing falls back."""

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same

import kiln_torch


def check(fn, *args):
    """`fn` compiled against itself, with the gradients of its floating arguments."""
    leaves = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
    results = []
    for run in (fn, torch.compile(fn, backend="kiln", options={"fallback": "raise"})):
        for leaf in leaves:
            leaf.requires_grad_()
            leaf.grad = None
        out = run(*args)
        if out.requires_grad:
            out.sum().backward()
        results.append((out.detach(), [leaf.grad for leaf in leaves]))
    (expected, gradients), (actual, our_gradients) = results
    assert_same(actual, expected)
    assert [g is None for g in our_gradients] == [g is None for g in gradients]
    for ours, theirs in zip(our_gradients, gradients, strict=True):
        if theirs is not None:
            assert_same(ours, theirs, what="gradient")
    assert not kiln_torch.stats()["fallbacks"]


LOSSES = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_of_nothing(loss, reduction):
    check(lambda x, y: loss(x, y * 2, reduction=reduction), torch.randn(0, 3), torch.randn(0, 3))


RESAMPLED = [
    ("nearest", 3), ("nearest", 4), ("nearest", 5), ("nearest-exact", 3), ("nearest-exact", 4),
    ("nearest-exact", 5), ("linear", 3), ("bilinear", 4), ("trilinear", 5), ("bicubic", 4),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "rank"), RESAMPLED)
@pytest.mark.parametrize("to", [{"scale_factor": 2.0}, {"size": 3}])
def test_a_batch_of_no_pictures_is_resampled(mode, rank, to):
    check(lambda x: F.interpolate(x, mode=mode, **to), torch.randn(0, 2, *[6] * (rank - 2)))


def test_an_expanded_nothing_is_written_nowhere():
    places = torch.zeros(0, dtype=torch.int64)
    check(lambda i: i[:, None].expand(0, 4), places)
    check(lambda i: (i * 2)[:, None].expand(-1, 4), places)
    check(lambda x: (x * 2).expand(5, 0, 3), torch.randn(5, 0, 1))
    check(lambda x, i: x.scatter(0, i[:, None].expand(0, 4), 1.0), torch.randn(3, 4), places)
    check(lambda x, i: x.gather(0, i[:, None].expand(0, 4) + 0), torch.randn(3, 4), places)


@pytest.mark.parametrize("sizes", [[0, 8], [3, 0, 5], [8, 0], [0, 0, 8, 0]])
def test_a_split_may_have_parts_of_nothing(sizes):
    check(lambda x: torch.cat([part.exp() * i for i, part in enumerate((x * 2).split(sizes, -1))], -1),
          torch.randn(4, 8))


def test_a_convolution_of_no_channels():
    check(lambda x, w: F.conv2d(x, w, padding=1), torch.randn(2, 0, 5, 5), torch.randn(4, 0, 3, 3))


@pytest.mark.parametrize("strides", [(0, 2, 2, 1), (2, 2, 2, 1), (0, 0, 0, 0)])
def test_an_argument_of_no_elements_is_written_in_place(strides):
    kiln_torch.reset()
    fn = torch.compile(lambda x: x.exp_().add_(1), backend="kiln", options={"fallback": "raise"})
    x = torch.empty_strided((2, 0, 1, 2), strides)
    assert fn(x) is x and not kiln_torch.stats()["fallbacks"]
