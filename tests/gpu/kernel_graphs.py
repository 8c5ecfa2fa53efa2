"""Saves the kernels of bench_kernels as graphs, for kiln-compile-times. Needs no GPU.

    PYTHONPATH=build/release/python KILN_BUILD=build/release python tests/gpu/kernel_graphs.py FOLDER
    build/release/bin/kiln-compile-times --target=ptx --repeat=5 FOLDER/*.kgraph
"""

import argparse
import pathlib
import re
import sys

import torch
from kiln_torch import save_graph

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bench import memory_bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for dtype in (torch.bfloat16, torch.float32):
        kind = str(dtype).removeprefix("torch.")
        for name, (function, _, arguments) in memory_bound(dtype, "cpu").items():
            file = re.sub(r"\W+", "_", name).strip("_")
            save_graph(function, arguments, folder / f"{file}_{kind}.kgraph")


if __name__ == "__main__":
    main()
