"""Collectives in graphs of two processes over gloo, and data-parallel training: as eager computes them."""

import copy
import socket

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import kiln_torch

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch is built without gloo"
)
WORLD = 2


def summed(x):
    return collectives.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def gathered(x):
    return collectives.all_gather_tensor(x * 2, 0, dist.group.WORLD).sin()


def scattered(x):
    return collectives.reduce_scatter_tensor(x * 2, "sum", 0, dist.group.WORLD).cos()


def one_after_another(x):
    sums = collectives.all_reduce(x.exp(), "sum", dist.group.WORLD)
    every = collectives.all_gather_tensor(sums * x, 0, dist.group.WORLD)
    return every.mean(0) - sums


def in_place(x):
    y = x * 3
    dist.all_reduce(y)
    return y.tanh() + x


CALLS = (summed, gathered, scattered, one_after_another, in_place)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))

    def forward(self, x):
        return self.layers(x).tanh()


def check_calls(rank):
    for call in CALLS:
        compiled = torch.compile(call, backend="kiln")
        # Large enough that a transfer takes a while.
        for rows in (4, 4, 20000):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(compiled(x), call(x), msg=lambda m: f"{call.__name__}: {m}")


def check_training(rank):
    network = Network()
    for parameter in network.parameters():
        dist.broadcast(parameter.data, 0)
    modules = [DistributedDataParallel(copy.deepcopy(network)) for _ in range(2)]
    calls = [torch.compile(modules[0], backend="kiln"), modules[1]]
    optimizers = [torch.optim.SGD(module.parameters(), 0.1) for module in modules]
    for rows in (6, 6, 5):
        x = torch.randn(rows, 8)
        for call, optimizer in zip(calls, optimizers, strict=True):
            optimizer.zero_grad()
            call(x).square().mean().backward()
            optimizer.step()
    for actual, expected in zip(*(module.parameters() for module in modules), strict=True):
        torch.testing.assert_close(actual, expected)


def check_tensor_parallel(rank):
    mesh = init_device_mesh("cpu", (WORLD,))
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))
    second = copy.deepcopy(first)
    for module in (first, second):
        parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    compiled = torch.compile(first, backend="kiln")
    for rows in (6, 6, 5):
        x = torch.randn(rows, 8)
        actual, expected = compiled(x), second(x)
        torch.testing.assert_close(actual, expected)
        for module, y in ((first, actual), (second, expected)):
            module.zero_grad()
            y.square().mean().backward()
        for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
            torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad.full_tensor())


def in_one_process(rank, port, check):
    torch.manual_seed(rank)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", address, rank=rank, world_size=WORLD)
    try:
        check(rank)
        stats = kiln_torch.stats()
        assert stats["graphs"] > 0 and stats["fallbacks"] == []
    finally:
        dist.destroy_process_group()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize("check", [check_calls, check_training, check_tensor_parallel])
def test_two_processes_compute_what_eager_computes(check):
    torch.multiprocessing.spawn(in_one_process, (free_port(), check), nprocs=WORLD)
