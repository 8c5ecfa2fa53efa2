"""Parts of check.py that run the cases of tests/conformance: in torch, and by `kiln run` without it."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import torch
from compare import assert_same, double_reference
from kilnd import BUILD
from measure import Results, compiled

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "conformance"))
from cases import CASES, Case, integers, randn  # noqa: E402, F401
from gaps import GAPS  # noqa: E402

# At a time, each with a CUDA context, and how long one may take.
PROCESSES, TIMEOUT_S = 8, 120


def in_torch(run: Results) -> None:
    for case in CASES:
        with run.case(f"conformance {case.name}"), torch.no_grad():
            args = tuple(arg.cuda() for arg in case.make())
            try:
                expected = case.fn(*args)
            except NotImplementedError as error:
                print(f"eager has no {case.name} on a GPU: {error}")
                continue
            reference = None
            if any(arg.dtype == torch.float32 for arg in args):
                reference = double_reference(case.fn, args)
            assert_same(compiled(case.fn)(*args), expected, reference, tol=case.tol)


def run_commands(case: Case, folder: pathlib.Path, train: bool = False) -> list[list[str]]:
    """The `kiln run` of each graph of a case on the GPU; where that is one, and numpy has the types
    of its inputs, on its own inputs, else on random ones."""
    import numpy

    import kiln_torch

    args = case.make()

    def fn(*tensors: torch.Tensor) -> object:
        # The graph's inputs are in order of first use: this makes it the order of `args`.
        return case.fn(*[torch.ops.aten.alias(tensor) for tensor in tensors])

    graphs = kiln_torch.save_graph(fn, args, folder / f"{case.name}.kgraph", train)
    own: list[str] = []
    if args and not train and not any(arg.dtype == torch.bfloat16 for arg in args):
        path = folder / f"{case.name}.npz"
        numpy.savez(path, *[arg.numpy() for arg in args])
        own = ["--inputs", str(path)]
    kiln = str(BUILD / "bin" / "kiln")
    return [[kiln, "run", str(graph), "--target", "ptx", *own] for graph in graphs]


def finished(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S
    )


def without_torch(run: Results) -> None:
    """Against the reference interpreter, which the server runs."""
    with tempfile.TemporaryDirectory(prefix="kiln-gpu-") as folder:
        cases = [case for case in CASES if case.name not in GAPS["ptx"]]
        commands = [[*run_commands(case, pathlib.Path(folder))[0], "--check"] for case in cases]
        with ThreadPoolExecutor(PROCESSES) as pool:
            results = [pool.submit(finished, command) for command in commands]
        for case, result in zip(cases, results, strict=True):
            with run.case(f"conformance without torch {case.name}"):
                done = result.result()
                assert done.returncode == 0, done.stdout
