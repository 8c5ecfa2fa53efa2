"""Saves the memory-bound kernels of tests/gpu's bench_kernels as graphs, for kiln-compile-times.

    PYTHONPATH=build/release/python KILN_BUILD=build/release python tests/bench/kernel_graphs.py FOLDER
    build/release/bin/kiln-compile-times --target=ptx --repeat=5 FOLDER/*.kgraph

Each is FOLDER/NAME_DTYPE.kgraph, over 8192 x 8192 values of bfloat16 and of float32.
"""

import argparse
import pathlib

import torch
from kiln_torch import save_graph

F = torch.nn.functional
SIDE = 8192


def add_rms_norm(x, y, w):
    z = (x + y).float()
    return (z * torch.rsqrt(z.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def kernels(dtype):
    """name: (function, arguments), none of which is read here."""
    x, y = (torch.empty(SIDE, SIDE, dtype=dtype) for _ in range(2))
    row = torch.empty(SIDE, dtype=dtype)
    target = torch.zeros(SIDE, dtype=torch.long)
    return {
        "add_relu": (lambda x, y: F.relu(x + y), (x, y)),
        "bias_gelu_tanh": (lambda x, b: F.gelu(x + b, approximate="tanh"), (x, row)),
        "gelu_times": (lambda x, y: F.gelu(x) * y, (x, y)),
        "softmax": (lambda x: x.softmax(-1), (x,)),
        "layer_norm": (lambda x, w, b: F.layer_norm(x, (SIDE,), w, b), (x, row, row)),
        "add_rms_norm": (add_rms_norm, (x, y, row)),
        "sum_rows": (lambda x: x.sum(-1), (x,)),
        "sum_columns": (lambda x: x.sum(0), (x,)),
        "sum_all": (lambda x: x.sum(), (x,)),
        "var_mean": (lambda x: torch.var_mean(x, -1), (x,)),
        "transpose_add": (lambda x, y: x.t() + y, (x, y)),
        "cross_entropy": (F.cross_entropy, (x, target)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for dtype in (torch.bfloat16, torch.float32):
        kind = str(dtype).removeprefix("torch.")
        for name, (function, arguments) in kernels(dtype).items():
            save_graph(function, arguments, folder / f"{name}_{kind}.kgraph")


if __name__ == "__main__":
    main()
