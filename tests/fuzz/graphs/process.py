"""The child process as seen from the parent: a crash or a hang of it is an answer."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from program import Program


class Child:
    def __init__(self, timeout_s: float, module: str = "") -> None:
        self._module = module
        self._timeout_s = timeout_s
        self._process: subprocess.Popen | None = None
        self._log = tempfile.TemporaryFile("w+")

    def _start(self) -> subprocess.Popen:
        script = Path(__file__).with_name("child.py")
        return subprocess.Popen(
            [sys.executable, str(script), *([self._module] if self._module else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # so that close() ends its forks, too
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # forks need a process of one thread
        )

    def ask(self, **request) -> dict:
        """{"ok": answer}, {"failed": sentence}, or {"crash": how the process ended}."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._ended()
        ready, _, _ = select.select([process.stdout], [], [], self._timeout_s)
        if not ready:
            self.close()
            return {"crash": f"no answer in {self._timeout_s:.0f} s"}
        line = process.stdout.readline()
        return json.loads(line) if line else self._ended()

    def _ended(self) -> dict:
        code = self._process.wait()
        self._process = None
        return {"crash": signal.Signals(-code).name if code < 0 else f"exit code {code}"}

    def generate(
        self, seed: int, length: int, sizes: list[int] | None, repeats: float
    ) -> Program | None:
        reply = self.ask(do="generate", seed=seed, length=length, sizes=sizes, repeats=repeats)
        return Program.from_json(reply["ok"]) if "ok" in reply else None

    def check(self, program: Program, layer: str = "kiln") -> dict:
        """An Outcome's fields."""
        reply = self.ask(do="check", program=program.to_json(), layer=layer)
        if "ok" in reply:
            return reply["ok"]
        nothing = {"fallbacks": [], "graphs": 0, "backward": False}
        if "crash" in reply:
            return {"kind": "crash", "what": reply["crash"], **nothing}
        raise RuntimeError(f"the generator failed on seed {program.seed}: {reply['failed']}")

    def cut(self, program: Program, name: str) -> Program | None:
        reply = self.ask(do="cut", program=program.to_json(), name=name)
        return Program.from_json(reply["ok"]) if reply.get("ok") else None

    def close(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
