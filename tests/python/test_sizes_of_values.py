"""Sizes that follow from tensors' values, as those of nonzero: the operators that make them run in Python, and
what comes before and after them in programs."""

import pytest
import torch
from compare import assert_same, to_double
from torch.utils._pytree import tree_map

import kiln_torch


@pytest.fixture(autouse=True)
def sizes_of_values_captured():
    with torch._dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    ):
        yield


def generator():
    return torch.Generator().manual_seed(4)


def positive_rows(x, w):
    rows = (x.sum(1) > 0).nonzero().squeeze(1)
    return torch.zeros(x.size(0), w.size(1), dtype=x.dtype).index_add(0, rows, (x[rows] @ w).relu())


def experts(x, w):
    chosen = (x.sum(1).abs() * 3).long() % 3
    result = torch.zeros(x.size(0), w.size(1), dtype=x.dtype)
    for i in range(3):
        rows = torch.where(chosen == i)[0]
        result = result.index_add(0, rows, (x.index_select(0, rows) * (i + 1)) @ w)
    return result.softmax(-1)


def positions(x, w):
    """Of a memory layout that is none of a new tensor's."""
    places = (x > 0).nonzero()
    return places, places.t(), places[:, 0], (places * 2).contiguous(), places.flip(1).cumsum(0)


def chosen_again(x, w):
    first = x[x > 0]
    second = first[first > 0.5]
    return first.sin().sum(), second[:, None] * first[None, :], torch.cat([second, first + 1])


def count(x, w):
    n = (x > 0).sum().item()
    torch._check(n >= 0)
    torch._check(n <= 1000)
    return torch.full((n + 2,), n * 2.0) + n, x * n, (torch.arange(n) * 2).sum(), n


def written(x, w):
    rows = (x.sum(1) > 0).nonzero().squeeze(1)
    x[rows] = x[rows] * 2 + 1
    return x.sum(0), rows


def kinds(x, w):
    values, places, counts = torch.unique((x * 2).long(), return_inverse=True, return_counts=True)
    return values * 2, places, counts, torch.bincount(places.flatten()).cumsum(0)


PROGRAMS = [positive_rows, experts, positions, chosen_again, count, written, kinds]


def some():
    x = torch.randn(8, 3, generator=generator())
    return [x, x[:5] + 0.1, -x.abs(), x.abs() + 0.1, x[:1].abs() + 1]


@pytest.mark.parametrize("dynamic", [False, None, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_results_are_eagers(program, dynamic):
    compiled = torch.compile(program, backend="kiln", fullgraph=True, dynamic=dynamic)
    w = torch.randn(3, 4, generator=generator())
    for x in some():
        given = [x.clone() for _ in range(3)]
        reference = program(*tree_map(to_double, (given[2], w)))
        assert_same(compiled(given[0], w), program(given[1], w), reference)
        assert torch.equal(given[0], given[1])
    stats = kiln_torch.stats()
    assert stats["fallbacks"] == [] and stats["run_calls"] > 0


@pytest.mark.parametrize("program", [positive_rows, experts])
def test_gradients_are_eagers(program):
    def step(fn, dtype=torch.float32):
        w = torch.randn(3, 4, generator=generator()).to(dtype).requires_grad_()
        gradients = []
        for x in some():
            x = x.to(dtype).requires_grad_()
            fn(x, w)[:, 0].square().sum().backward()
            gradients.append(x.grad)
        return gradients, w.grad

    compiled = torch.compile(program, backend="kiln", fullgraph=True)
    assert_same(step(compiled), step(program), step(program, torch.float64))
    assert kiln_torch.stats()["fallbacks"] == []


def test_a_size_that_a_check_forbids_raises_as_in_eager():
    def zeros(n):
        size = n.item()
        torch._check(size >= 2)
        torch._check(size <= 20)
        return torch.zeros(size) + 1

    compiled = torch.compile(zeros, backend="kiln", fullgraph=True)
    assert_same(compiled(torch.tensor(4)), torch.ones(4))
    for size in (1, 21, -3):
        with pytest.raises(RuntimeError):
            compiled(torch.tensor(size))
    assert_same(compiled(torch.tensor(2)), torch.ones(2))
    assert kiln_torch.stats()["fallbacks"] == []
