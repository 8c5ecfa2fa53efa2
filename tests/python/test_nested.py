"""Nested tensors of jagged layout: sequences of unequal lengths, one behind the other."""

import copy

import pytest
import torch
from compare import assert_same
from torch import nn
from torch.nn import functional as F

import kiln_torch

LENGTHS = ((3, 5), (2, 7), (4, 4, 4), (6, 1))
NETWORK = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


def padded(network, x):
    return torch.nested.to_padded_tensor(network(x), 0.0)


def attention(network, x):
    q = network(x).unflatten(-1, (2, 2)).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(-2)


def norm_and_sum(network, x):
    y = F.layer_norm(network(x), (4,)) + x
    return y, y.values().sum(0)


def step(fn, network, sequences):
    """Values of the results, and every gradient."""
    sequences = [sequence.clone().requires_grad_() for sequence in sequences]
    network.zero_grad()
    results = fn(network, torch.nested.as_nested_tensor(sequences, layout=torch.jagged))
    results = results if isinstance(results, tuple) else (results,)
    values = [result.values() if result.is_nested else result for result in results]
    sum(value.square().sum() for value in values).backward()
    return values, [sequence.grad for sequence in sequences], [p.grad for p in network.parameters()]


@pytest.mark.parametrize("options", [{}, {"check": True}])
@pytest.mark.parametrize("fn", [padded, attention, norm_and_sum])
def test_sequences_of_other_lengths_and_number(fn, options):
    network = copy.deepcopy(NETWORK)
    compiled = torch.compile(fn, backend="kiln", options=options)
    for lengths in LENGTHS:
        torch.manual_seed(sum(lengths))
        sequences = [torch.randn(length, 4) for length in lengths]
        actual = step(compiled, network, sequences)
        expected = step(fn, network, sequences)
        exact_network = copy.deepcopy(network).double()
        exact = step(fn, exact_network, [sequence.double() for sequence in sequences])
        assert_same(actual, expected, exact)
    stats = kiln_torch.stats()
    assert stats["fallbacks"] == [] and stats["graphs"] >= 2
