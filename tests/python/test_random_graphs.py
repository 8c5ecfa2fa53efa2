"""A part of a minute of tests/fuzz/graphs, and that it finds what is wrong.

The same programs on every machine that is quick enough. KILN_FUZZ_SEED takes others, and
KILN_FUZZ_SECONDS as many as fit into that time.
"""

import os
import pathlib
import subprocess
import sys

import pytest

COMMAND = [sys.executable, pathlib.Path(__file__).parents[1] / "fuzz" / "graphs"]


def fuzz(folder, *flags, **environment):
    environment.setdefault("PYTHONPATH", os.pathsep.join(sys.path))
    return subprocess.run(
        [*COMMAND, "--out", folder, *map(str, flags)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_random_graphs_equal_eager(tmp_path):
    seed = os.environ.get("KILN_FUZZ_SEED", "20000")
    seconds = os.environ.get("KILN_FUZZ_SECONDS")
    length = ("--seconds", seconds) if seconds else ("--seconds", 40, "--count", 30)
    done = fuzz(tmp_path, "--seed", seed, *length, "--shrink-seconds", 30)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"seed {seed}" in done.stdout and "findings: none" in done.stdout


def test_random_graphs_that_repeat_themselves_equal_eager(tmp_path):
    done = fuzz(tmp_path, "--seed", 930100, "--repeats", 0.4, "--seconds", 30, "--count", 12)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


PLANT = """
import json
from kiln_torch import graphs

capture = graphs.capture

def wrong(*args):
    graph = json.loads(capture(*args))
    for node in graph["nodes"]:
        if node["op"] == "aten.{op}":
            {change}
    return json.dumps(graph)

graphs.capture = wrong
"""


@pytest.mark.parametrize(
    ("op", "change", "kind"),
    [
        ("abs.default", 'node["op"] = "aten.neg.default"', "value"),
        ("permute.default", "import os; os.kill(os.getpid(), 11)", "crash"),
    ],
)
def test_a_planted_fault_is_found_made_small_and_written(tmp_path, op, change, kind):
    (tmp_path / "plant.py").write_text(PLANT.format(op=op, change=change))
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = fuzz(
        tmp_path, "--seed", 7, "--seconds", 60, "--stop", "--import", "plant", PYTHONPATH=path
    )
    assert done.returncode == 1, done.stdout + done.stderr
    (script,) = tmp_path.glob(f"kiln-{kind}-*.py")
    assert f": {kind} (kiln): " in done.stdout and str(script) in done.stdout
    body = script.read_text().split("def fn(")[1].split("return")[0]
    assert len(body.splitlines()) <= 5, body
