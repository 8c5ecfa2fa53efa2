"""What people see of a GPU's kernels, without a GPU: PTX, and machine code where there are NVIDIA's programs."""

import json
import shutil
import subprocess
import time
import urllib.request

import pytest
import torch
from kilnd import BUILD, Server

import kiln_torch

GPU = ("--target", "ptx", "--arch", "sm_90a")


@pytest.fixture
def explain(tmp_path):
    running = Server(tmp_path / "data", "--ptxas=auto")
    graph = tmp_path / "softmax.kgraph"
    kiln_torch.save_graph(lambda x: x.softmax(-1), (torch.randn(8, 64),), str(graph))

    def run(*command):
        done = subprocess.run(
            [str(BUILD / "bin" / "kiln"), *command, str(graph), "--server", running.address, *GPU],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done

    run.server = running
    yield run
    assert running.stop() == 0


def test_code_is_shown_of_kernels_that_the_cache_has_too(explain):
    explain("compile")
    for _ in range(2):
        done = explain("explain", "--code")
        assert ".visible .entry kiln_" in done.stdout
        if shutil.which("ptxas") is None:
            assert "no machine code" in done.stderr
        elif "no machine code" in done.stderr:
            pytest.skip("PTX is shown; there is no nvdisasm for machine code")
        else:
            assert "registers" in done.stdout
            machine_code = done.stdout.split("\nMachine code\n")[1]
            assert "kiln_" in machine_code and "EXIT" in machine_code
    assert ".visible .entry" not in explain("explain").stdout


def test_the_page_has_it(explain):
    """Which compiles the graph once more, for people."""

    def ask(path, method="GET"):
        url = f"http://{explain.server.http}/api/v1/{path}"
        request = urllib.request.Request(url, method=method, headers={"Kiln-Page": "1"})
        with urllib.request.urlopen(request) as reply:
            return reply.read().decode()

    explain("compile")
    (record,) = json.loads(ask("activity?recent=10"))["recent"]
    details = f"compiles/{record['key']}/details"
    ask(details, "POST")
    deadline = time.monotonic() + 60
    while (state := json.loads(ask(details)))["state"] != "ready":
        assert time.monotonic() < deadline, state
        time.sleep(0.1)
    kernel = state["detail"]["kernels"][0]
    texts = f"compiles/{record['key']}/kernels/0"
    assert kernel["assembly_bytes"] > 0 and ".visible .entry" in ask(f"{texts}/assembly")
    if shutil.which("ptxas") is None:
        pytest.skip("PTX is shown; there is no ptxas")
    assert "registers" in kernel["resources"]
    machine_code = ask(f"{texts}/machine_code")
    assert len(machine_code) == kernel.get("machine_code_bytes", 0)
    if shutil.which("nvdisasm") is None and not machine_code:
        pytest.skip("PTX is shown; there is no nvdisasm")
    assert "EXIT" in machine_code
