"""A kilnd process of a test."""

import os
import pathlib
import re
import select
import signal
import subprocess
import time
import urllib.request

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
            "--socket=none",
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

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=10) as page:
            return page.read().decode()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)
