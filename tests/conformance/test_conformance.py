"""Every case on every target, against torch eager with a float64 reference."""

import os
import subprocess

import numpy
import pytest
import torch
from cases import CASES
from compare import assert_same, double_reference
from conftest import BUILD
from gaps import GAPS

import kiln_torch

ROUNDED = (torch.float32, torch.bfloat16, torch.float16)


def on(target):
    for case in CASES:
        gap = GAPS[target].get(case.name)
        marks = [pytest.mark.xfail(strict=True, reason=gap)] if gap else []
        yield pytest.param(case, id=case.name, marks=marks)


def check(case, **options):
    args = case.make()
    with torch.no_grad():
        expected = case.fn(*args)
        reference = None
        # Eager's own kernels of 16 bits round in between, as the machine has it.
        if any(a.dtype in ROUNDED for a in args):
            reference = double_reference(case.fn, args)
        run = torch.compile(case.fn, backend="kiln", options={"fallback": "raise", **options})
        actual = run(*args)
    assert_same(actual, expected, reference, tol=case.tol)
    assert kiln_torch.stats()["steps"]["library"] == 0, kiln_torch.stats()["library_ops"]


@pytest.mark.parametrize("case", on("cpp"))
def test_cpp(case):
    check(case)


@pytest.mark.parametrize("case", on("gcu"))
def test_gcu(case):
    """On the simulated device, and on its host what it lacks."""
    check(case, device="gcu-16m")


@pytest.mark.parametrize("case", on("interpreter"))
def test_interpreter(case, tmp_path, server):
    """`kiln run --check` compares the compiled program with the reference interpreter."""
    args = case.make()

    def fn(*tensors):
        # The graph's inputs are in order of first use: this makes it the order of `args`.
        return case.fn(*[torch.ops.aten.alias(t) for t in tensors])

    [graph] = kiln_torch.save_graph(fn, args, tmp_path / "case.kgraph")
    command = [str(BUILD / "bin" / "kiln"), "run", str(graph), "--check"]
    if not any(a.dtype == torch.bfloat16 for a in args):  # numpy has no such type
        path = tmp_path / "inputs.npz"
        numpy.savez(path, *[a.numpy() for a in args])
        command += ["--inputs", str(path)]
    done = subprocess.run(
        command,
        env={**os.environ, "KILN_SERVER": server.address},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
