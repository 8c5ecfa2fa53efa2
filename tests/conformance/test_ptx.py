"""Every case on target ptx, without a GPU: the interpreter runs the target's schedules, and ptxas takes the PTX.

What is computed is compared with what the module says before it is scheduled, on random inputs. That
the text printed of a schedule does what it says is shown by tests/unit/compiler/codegen, emulated.
"""

import math
import os
import re
import shutil
import subprocess

import pytest
from cases import CASES
from conftest import BUILD
from gaps import GAPS

import kiln_torch

PTXAS = shutil.which("ptxas")


def cases():
    for case in CASES:
        gap = GAPS["ptx"].get(case.name)
        marks = [pytest.mark.xfail(strict=True, reason=gap)] if gap else []
        yield pytest.param(case, id=case.name, marks=marks)


def outputs(text):
    """Of what `kiln-opt --run` prints: each output's type, and its numbers."""
    lines = [line for line in text.splitlines() if line.startswith("output ")]
    number = r"-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf|nan)"
    found = []
    for line in lines:
        kind, values = line.split(" sum ", 1)
        found.append((kind, [float(v) for v in re.findall(number, values)]))
    return found


def close(a, b, tolerance):
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= tolerance * (1 + abs(b))


@pytest.mark.parametrize("case", cases())
def test_ptx(case, tmp_path, server):
    args = case.make()
    [graph] = kiln_torch.save_graph(case.fn, args, tmp_path / "case.kgraph")
    environment = {**os.environ, "KILN_SERVER": server.address}

    def compiled(*flags):
        command = [BUILD / "bin" / "kiln", "compile", graph, "--target", "ptx", "--arch", "sm_90a"]
        command += ["--libraries", ""]  # all native, whatever the client that saved it could call
        done = subprocess.run([*command, *flags], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    module = tmp_path / "case.kir"
    module.write_text(compiled("--emit", "ir", "--stage", "fuse"))

    def run(*flags):
        command = [BUILD / "bin" / "kiln-opt", "--run", "--seed=3", *flags, module]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return outputs(done.stdout)

    target = ("--target=ptx", "--arch=sm_90a")
    expected = run("--stop-after=ir")
    actual = run("--start-from=tile", "--stop-after=schedule", *target)
    assert [kind for kind, _ in actual] == [kind for kind, _ in expected]
    for (kind, a), (_, b) in zip(actual, expected, strict=True):
        tolerance = 2e-2 if " f16[" in kind or "bf16[" in kind else 1e-6
        assert len(a) == len(b) and all(close(x, y, tolerance) for x, y in zip(a, b, strict=True)), (
            kind,
            a,
            b,
        )
    if PTXAS is None:
        pytest.skip("the schedule is right; there is no ptxas to try the PTX with")
    text = re.sub(r"(?m)^# .*$", "", compiled("--emit", "asm"))  # names of kernels
    modules = re.split(r"(?m)^(?=\.version )", text)[1:]
    assert modules
    for i, module in enumerate(modules):
        path = tmp_path / f"{i}.ptx"
        path.write_text(module)
        command = [PTXAS, "-arch=sm_90a", path, "-o", tmp_path / "out.cubin"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + module
