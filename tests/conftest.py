"""Starts one real kilnd for all Python tests, on free ports and in a folder of its own."""

import os
import pathlib
import re
import select
import signal
import subprocess
import time

import pytest
import torch

BUILD = pathlib.Path(os.environ.get("KILN_BUILD", "build/release")).resolve()


class Server:
    """A kilnd process; `address` takes clients, `http` metrics."""

    def __init__(
        self, data_dir: pathlib.Path, *flags: str, program: pathlib.Path = BUILD / "bin" / "kilnd"
    ) -> None:
        command = [
            str(program),
            "--listen=127.0.0.1:0",
            "--metrics-listen=127.0.0.1:0",
            f"--data-dir={data_dir}",
            *flags,
        ]
        self.log = data_dir.with_suffix(".log")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.log.open("w"), text=True
        )
        deadline = time.monotonic() + 60
        line = ""
        while not line.startswith("kilnd ready:"):
            ready, _, _ = select.select([self.process.stdout], [], [], deadline - time.monotonic())
            line = self.process.stdout.readline() if ready else ""
            if not line:
                raise RuntimeError(f"kilnd did not start: {self.log.read_text()[-2000:]}")
        self.address = re.search(r"grpc (\S+),", line)[1]
        self.http = re.search(r"http (\S+),", line)[1]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("kilnd") / "data")
    os.environ["KILN_SERVER"] = running.address
    yield running
    assert running.stop() == 0


@pytest.fixture(autouse=True)
def fresh(server):
    import kiln_torch

    torch.manual_seed(0)
    torch._dynamo.reset()
    kiln_torch.reset()
    os.environ["KILN_SERVER"] = server.address
    yield
