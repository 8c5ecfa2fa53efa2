"""A kilnd of the build under test, and the command-line client, for tests of what surrounds them."""

import contextlib
import json
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KILN_BUILD", ROOT / "build" / "release")).resolve()
SKIPPED = 77  # what ctest takes for "skipped"


def skip(reason: str) -> None:
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def need(tool: str) -> str:
    path = shutil.which(tool)
    if path is None:
        skip(f"{tool} is not installed")
    return path


class Kilnd:
    """Runs until the end of a `with`; `grpc` and `http` are its addresses, `log` its lines."""

    def __init__(self, *flags: str, programs: pathlib.Path = BUILD / "bin") -> None:
        self.programs = programs
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kiln-deploy-"))
        self.log_path = self.folder / "log"
        command = [
            str(programs / "kilnd"),
            "--listen=127.0.0.1:0",
            "--metrics-listen=127.0.0.1:0",
            "--socket=none",
            f"--data-dir={self.folder / 'data'}",
            "--workers=2",
            "--log-format=json",
            *flags,
        ]
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        ready, _, _ = select.select([self.process.stdout], [], [], 60)
        line = self.process.stdout.readline() if ready else ""
        if not line.startswith("kilnd ready:"):
            self.process.kill()
            raise RuntimeError(f"kilnd did not start: {self.log_path.read_text()}")
        self.grpc = re.search(r"grpc (\S+),", line)[1]
        self.http = re.search(r"http (\S+),", line)[1]

    def __enter__(self) -> "Kilnd":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        return code

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=10) as answer:
            return answer.read().decode()

    def log(self) -> list[dict]:
        return [json.loads(line) for line in self.log_path.read_text().splitlines()]

    def kiln(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(self.programs / "kiln"), *arguments],
            env={**os.environ, "KILN_SERVER": self.grpc, "HOME": str(self.folder), **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def shared_tier():
    """kilnd's flags for a Redis of its own; none where redis-server is not installed."""
    if shutil.which("redis-server") is None:
        yield []
        return
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield [f"--remote-cache=redis://127.0.0.1:{port}"]
    finally:
        process.terminate()
        process.wait()


def make_graph(folder: pathlib.Path, name: str, op: str = "aten.relu.default", size: int = 64) -> str:
    """A graph of one operator as a saved graph; the path."""
    tensor = f"tensor {{ dtype: DTYPE_FLOAT32 sizes {{ value: {size} }} strides {{ value: 1 }} }}"
    text = f"""
        format_version: 1
        name: {json.dumps(name)}
        inputs {{ name: "x" role: ROLE_USER type {{ {tensor} }} }}
        nodes {{ name: "y" op: {json.dumps(op)} args {{ value: 0 }} results {{ {tensor} }} }}
        outputs {{ value: 1 }}
    """
    encoded = subprocess.run(
        [need("protoc"), f"-I{ROOT / 'proto'}", "--encode=kiln.v1.Graph", "kiln/v1/graph.proto"],
        input=text.encode(),
        capture_output=True,
        check=True,
        cwd=ROOT / "proto",
    ).stdout
    path = folder / f"graph{size}.kgraph"
    path.write_bytes(encoded)
    return str(path)


def eventually(condition, timeout_s: float = 20.0):
    """The first true value of condition(), asked again and again; its last one after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value
