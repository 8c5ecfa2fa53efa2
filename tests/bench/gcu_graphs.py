"""Writes graphs for gcu_times.

    python tests/bench/gcu_graphs.py FOLDER MODEL[:BATCH] ...

MODEL: one of tests/bench/models.py, or `mlp`. BATCH: a number, 1 unless said; `dynamic`, for a symbol
captured at batch 8; or `length`, for one sequence of a length that is a symbol. The file is
FOLDER/MODEL-BATCH.kgraph.
"""

import sys
from pathlib import Path

import torch
from models import MODELS

import kiln_torch


def mlp() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    layers: list[torch.nn.Module] = []
    for _ in range(4):
        layers += [torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.LayerNorm(512)]
    return torch.nn.Sequential(*layers).eval(), (torch.randn(1, 512),)


def main() -> None:
    folder = Path(sys.argv[1])
    for what in sys.argv[2:]:
        name, _, batch = what.partition(":")
        batch = batch or "1"
        torch.manual_seed(0)
        model, args = mlp() if name == "mlp" else MODELS[name]()
        size = int(batch) if batch.isdigit() else {"dynamic": 8, "length": 1}[batch]
        args = tuple(arg if arg is None else arg.repeat(size, *[1] * (arg.dim() - 1)) for arg in args)
        for arg in filter(torch.is_tensor, args):
            if not batch.isdigit():
                torch._dynamo.mark_dynamic(arg, ["dynamic", "length"].index(batch))
        for path in kiln_torch.save_graph(model, args, folder / f"{name}-{batch}.kgraph"):
            print(path)


if __name__ == "__main__":
    main()
