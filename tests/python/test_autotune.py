"""mode "max-autotune": a first process times schedules of a kernel, and the server keeps the fastest."""

import os
import subprocess
import sys

import pytest
from kilnd import Server

PROGRAM = """
import sys
import torch
import kiln_torch

model = torch.nn.Sequential(torch.nn.Linear(96, 200), torch.nn.GELU(), torch.nn.Linear(200, 40))
x = torch.randn(64, 96)
call = torch.compile(model, backend="kiln", mode=sys.argv[1])
with torch.set_grad_enabled(sys.argv[2] == "training"):
    for _ in range(3):
        torch.testing.assert_close(call(x), model(x), atol=1e-5, rtol=1e-5)
        if sys.argv[2] == "training":
            call(x).sum().backward()
print(kiln_torch.stats()["launches_timed"])
"""


@pytest.fixture
def own(tmp_path):
    running = Server(tmp_path / "data")
    yield running
    assert running.stop() == 0


def timed(server, mode, kind="inference", **environment):
    """How many launches a process of its own has timed."""
    environment = {**os.environ, "KILN_SERVER": server.address, **environment}
    environment["KILN_FALLBACK"] = "raise"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode, kind],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return int(done.stdout)


def chosen(server):
    return server.log.read_text().count("a client chose among a kernel's schedules")


@pytest.mark.parametrize("kind", ["inference", "training"])
def test_a_second_process_takes_what_the_first_has_timed(own, kind):
    first = timed(own, "max-autotune", kind)
    assert first > 0
    known = chosen(own)
    assert 0 < known <= first  # equal kernels are one choice
    assert timed(own, "max-autotune", kind) == 0
    assert timed(own, "max-autotune-no-cudagraphs", kind) == 0
    assert chosen(own) == known


def test_other_modes_time_nothing(own):
    assert timed(own, "default") == 0
    assert chosen(own) == 0


def test_what_is_not_decided_is_not_kept_on_disk(own, tmp_path):
    """A local copy would be timed again in every process."""
    local = {"KILN_LOCAL_CACHE": str(tmp_path / "local")}
    assert timed(own, "max-autotune", **local) > 0
    assert timed(own, "max-autotune", **local) == 0


def test_a_choice_outlives_the_server(tmp_path):
    for number in range(2):
        server = Server(tmp_path / "data")
        assert (timed(server, "max-autotune") > 0) == (number == 0)
        assert server.stop() == 0
