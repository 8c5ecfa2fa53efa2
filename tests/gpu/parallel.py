"""The part of check.py with two GPUs: data-parallel training over NCCL, a process a GPU, both with one
server, against eager's; and what was compiled for it."""

from __future__ import annotations

import copy
import os
import pathlib
import socket
import tempfile
from typing import Any

import torch
from measure import Results, compare, widened
from training import MODELS, TIMES_EAGER, training_loss

RANKS, STEPS = 2, 3


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _train(module: torch.nn.Module, x: torch.Tensor, by_kiln: bool) -> list[torch.Tensor]:
    """Losses and parameters of a few steps, each rank with its own half of the batch."""
    parallel = torch.nn.parallel.DistributedDataParallel(module, device_ids=[x.device.index])
    forward = parallel
    if by_kiln:
        torch._dynamo.reset()
        options = {"fallback": "raise"}
        forward = torch.compile(parallel, backend="kiln", dynamic=False, options=options)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-2, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        loss = training_loss(forward, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [torch.stack(losses), *(p.detach() for p in parallel.parameters())]


def _rank(rank: int, port: int, name: str, dtype: torch.dtype, out: str) -> None:
    import kiln_torch

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    torch.backends.cudnn.allow_tf32 = False
    torch.distributed.init_process_group("nccl", rank=rank, world_size=RANKS)
    try:
        torch.manual_seed(0)
        module, x = MODELS[name]()
        module = module.to(f"cuda:{rank}").to(dtype).train()
        torch.manual_seed(rank)
        if x.is_floating_point():
            x = torch.randn_like(x, device=f"cuda:{rank}", dtype=dtype)
        else:
            x = torch.randint(0, 100, x.shape, device=f"cuda:{rank}")
        wide = _train(copy.deepcopy(module).double(), widened(x), False)
        eager = _train(copy.deepcopy(module), x, False)
        kiln = _train(copy.deepcopy(module), x, True)
        result: dict[str, Any] = {
            "sides": [[t.cpu() for t in side] for side in (kiln, eager, wide)],
            "stats": kiln_torch.stats(),
        }
        torch.save(result, pathlib.Path(out) / f"{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


def parallel(run: Results) -> None:
    if torch.cuda.device_count() < RANKS:
        print(f"skipped: {torch.cuda.device_count()} GPU, {RANKS} are needed")
        return
    for name, dtype in (("gpt", torch.float32), ("gpt", torch.bfloat16), ("resnet", torch.float32)):
        kind = str(dtype).removeprefix("torch.")
        with run.case(f"parallel {name} {kind}"), tempfile.TemporaryDirectory() as out:
            torch.multiprocessing.spawn(_rank, (_free_port(), name, dtype, out), nprocs=RANKS)
            ranks = [torch.load(pathlib.Path(out) / f"{rank}.pt") for rank in range(RANKS)]
            for rank in ranks:
                compare(*rank["sides"], TIMES_EAGER)
            for a, b in zip(*(rank["sides"][0][1:] for rank in ranks), strict=True):
                assert torch.equal(a, b), "the ranks' parameters differ"
            stats = [rank["stats"] for rank in ranks]
            compiles = sum(s["compiles"] for s in stats)
            print(
                f"{'':6}{stats[0]['graphs']} graphs a rank, {compiles} compiles in all; "
                f"hits {[s['hits'] for s in stats]}"
            )
            assert not any(s["fallbacks"] for s in stats)
            assert compiles <= stats[0]["graphs"], "the ranks did not share their compiles"
