"""Sparse gradients of embeddings: what makes them runs between programs, and nothing falls back."""

import copy

import pytest
import torch
from torch import nn

import kiln_torch


class Features(nn.Module):
    """An embedding, two bags and what is learned from them: sparse gradients beside dense ones."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 6, sparse=True)
        self.sums = nn.EmbeddingBag(15, 6, mode="sum", sparse=True)
        self.means = nn.EmbeddingBag(15, 6, mode="mean", sparse=True)
        self.top = nn.Sequential(nn.Linear(18, 8), nn.GELU(), nn.Linear(8, 1))

    def forward(self, words, bags, offsets):
        pooled = self.words(words).tanh().mean(1)
        parts = [pooled, self.sums(bags, offsets), self.means(bags, offsets) * 2]
        return self.top(torch.cat(parts, 1)).square().mean()


def batch(rows, seed):
    draw = torch.Generator().manual_seed(seed)
    words = torch.randint(0, 20, (rows, 4), generator=draw)
    bags = torch.randint(0, 15, (3 * rows,), generator=draw)
    return words, bags, torch.arange(rows) * 3


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_and_steps(dynamic):
    torch.manual_seed(0)
    torch._dynamo.reset()
    kiln_torch.reset()
    eager = Features()
    model = copy.deepcopy(eager)
    run = torch.compile(model, backend="kiln", dynamic=dynamic, options={"fallback": "raise"})
    optimizers = []
    for m in (eager, model):
        sparse = [m.words.weight, m.sums.weight, m.means.weight]
        optimizers.append((torch.optim.SparseAdam(sparse, lr=0.1), torch.optim.SGD(m.top.parameters(), 0.1)))
    for seed, rows in enumerate((4, 4, 7, 2)):
        losses = []
        for call, steps in zip((eager, run), optimizers, strict=True):
            for step in steps:
                step.zero_grad()
            losses.append(call(*batch(rows, seed)))
            losses[-1].backward()
        torch.testing.assert_close(*losses)
        for actual, expected in zip(model.parameters(), eager.parameters(), strict=True):
            assert actual.grad.layout == expected.grad.layout
            torch.testing.assert_close(actual.grad.to_dense(), expected.grad.to_dense(), atol=1e-5, rtol=1e-4)
        for steps in optimizers:
            for step in steps:
                step.step()
    for actual, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_bfloat16():
    torch.manual_seed(0)
    torch._dynamo.reset()
    eager = nn.Embedding(20, 16, sparse=True).bfloat16()
    model = copy.deepcopy(eager)
    run = torch.compile(lambda i: model(i).sin().sum(), backend="kiln", options={"fallback": "raise"})
    words = torch.arange(12).view(3, 4) % 5
    eager(words).sin().sum().backward()
    run(words).backward()
    assert model.weight.grad.dtype == torch.bfloat16
    torch.testing.assert_close(model.weight.grad.to_dense(), eager.weight.grad.to_dense(), atol=0.02, rtol=0.02)
