"""Control flow that follows from values, and operators that write to their arguments: they run in Python,
between programs, and the branches are programs, too."""

import copy

import pytest
import torch
from compare import assert_same
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention

import kiln_torch

NETWORK = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 5))


def one_choice(network, x):
    h = network(x)
    chosen = torch.cond(
        x.sum() > 0, lambda h: (h.sin() * 2 + h).softmax(-1), lambda h: network(h) - 1, (h,)
    )
    return chosen.exp() + h, chosen.sum()


def choices_one_after_another(network, x):
    for i in range(3):
        x = torch.cond(x.mean() > 0.1 * i, lambda x: network(x).tanh(), lambda x: x / 2 + 1, (x,))
    return x @ x.t()


def choice_in_a_choice(network, x):
    def inner(h):
        return torch.cond(h.mean() > 0.1, lambda h: h.exp() * h, lambda h: network(h) * 3, (h * 2,)) + 1

    return torch.cond(x.sum() > 0, inner, lambda h: h.cos() * h, (network(x),)) * 2


def loop(network, x):
    def body(i, x):
        return i + 1, (network(x) * 1.1 + i).tanh()

    i, y = while_loop(lambda i, x: (i < 5) & (x.sum() < 9), body, (torch.tensor(0), x * 2))
    return y + 1, i


def recurrence(network, x):
    def step(state, row):
        return (state * 0.9 + row).tanh(), (state * row).sum(-1)

    last, sums = scan(step, x.sum(0) * 0, network(x))
    return last * 2, sums.sum(0)


def gated_recurrence(network, x):
    def step(state, row):
        gate = state[0].softmax(-1)
        return [gate * row, (state[1] + row).exp() * 0.1], gate

    last, gates = scan(step, [x.sum(0), x.mean(0)], network(x), reverse=True)
    return *last, gates.sum(-1)


def recurrence_over_columns(network, x):
    def step(state, column):
        return (state * 0.9 + column).tanh(), state * column

    last, products = scan(step, x.sum(1), network(x), dim=1)
    return last, products.sum(0)


def row_by_row(network, x):
    return torch_map(lambda row, like: (row * like).tanh(), network(x), x[0]).sum(0)


def attention_with_a_bias_of_its_own(network, x):
    q = network(x).view(1, 1, *x.shape)

    def nearer(score, batch, head, i, j):
        return score - (i - j).abs() * 0.1

    return flex_attention(q, q * 2, q + 1, score_mod=nearer).sin()


def step(fn, network, x, train):
    network.zero_grad()
    x = x.clone().requires_grad_(train)
    with torch.set_grad_enabled(train):
        results = fn(network, x)
    results = results if isinstance(results, tuple) else (results,)
    gradients = []
    if train:
        sum(result.square().sum() for result in results).backward()
        gradients = [x.grad, *(p.grad for p in network.parameters() if p.grad is not None)]
    return [result.detach() for result in results], gradients


@pytest.mark.parametrize(
    ("fn", "train", "dynamic"),
    [
        (one_choice, True, None),
        (one_choice, False, True),
        (choices_one_after_another, True, True),
        (choice_in_a_choice, True, None),
        (loop, False, None),
        (recurrence, False, None),
        (recurrence, True, None),
        (recurrence, True, True),
        (gated_recurrence, True, None),
        (recurrence_over_columns, True, None),
        (recurrence_over_columns, False, True),
        (row_by_row, True, True),
        (attention_with_a_bias_of_its_own, False, True),
    ],
)
def test_each_way_equals_eager(fn, train, dynamic):
    network = copy.deepcopy(NETWORK)
    exact_network = copy.deepcopy(network).double()
    compiled = torch.compile(fn, backend="kiln", dynamic=dynamic)
    for rows in (4, 6, 3):
        x = torch.randn(rows, 5)
        actual = step(compiled, network, x, train)
        expected = step(fn, network, x, train)
        assert_same(actual, expected, step(fn, exact_network, x.double(), train))
    stats = kiln_torch.stats()
    assert stats["fallbacks"] == [] and stats["graphs"] >= 2


@torch.library.custom_op("kiln_tests::add_to", mutates_args=("y",))
def add_to(x: torch.Tensor, y: torch.Tensor) -> None:
    y.add_(x)


def writes_to_results(x, y):
    a = x * 2
    add_to(x.sin(), a)
    b = a * 3
    add_to(b, a)
    return a + y, b


def writes_to_an_argument(x, y):
    add_to(x * 2, y)
    return y * 2 + x.sum()


def writes_to_a_view(x, y):
    add_to(x[:, :2].exp(), y[:, 1:3])
    return y.softmax(-1)


@pytest.mark.parametrize("fn", [writes_to_results, writes_to_an_argument, writes_to_a_view])
def test_custom_operators_that_write_to_their_arguments(fn):
    compiled = torch.compile(fn, backend="kiln")
    for rows in (4, 6, 4):
        x, y = torch.randn(rows, 5), torch.randn(rows, 5)
        actual_y, exact_y = y.clone(), y.double()
        exact = fn(x.double(), exact_y)
        assert_same((compiled(x, actual_y), actual_y), (fn(x, y), y), (exact, exact_y))
    stats = kiln_torch.stats()
    assert stats["fallbacks"] == [] and stats["graphs"] >= 2


def test_parameters_are_parameters_of_each_part():
    network = copy.deepcopy(NETWORK).eval()
    compiled = torch.compile(one_choice, backend="kiln")
    with torch.no_grad():
        for scale in (1.0, 0.5):
            network[0].weight.mul_(scale)
            for x in (torch.ones(4, 5), -torch.ones(4, 5)):
                assert_same(compiled(network, x), one_choice(network, x))
    assert kiln_torch.stats()["fallbacks"] == []


def test_random_numbers_of_eagers_keep_their_order():
    def noisy(x):
        y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return torch.rand_like(y) + y * torch.rand_like(x)

    x = torch.randn(4, 5)
    compiled = torch.compile(noisy, backend="kiln", options={"fallback_random": True})
    torch.manual_seed(3)
    actual = compiled(x)
    torch.manual_seed(3)
    assert_same(actual, noisy(x))


def test_a_choice_by_a_size_and_values():
    def chosen(x):
        is_long = torch.tensor(x.size(0) > 4)
        y = torch.cond(is_long & (x.sum() > 0), lambda x: x.sum(0), lambda x: x.mean(0), (x,))
        return torch.cond(is_long, lambda y: y.exp(), lambda y: y * 2, (y,))

    compiled = torch.compile(chosen, backend="kiln", dynamic=True, fullgraph=True)
    for size in (3, 6, 4, 5, 9):
        for x in (torch.rand(size, 2), -torch.rand(size, 2)):
            assert_same(compiled(x), chosen(x), chosen(x.double()))
    assert kiln_torch.stats()["fallbacks"] == []
