#!/usr/bin/env python3
"""`kiln top` in a terminal of its own: a pty, real keys, a real kilnd.

Usage: top_test.py --kilnd PROGRAM --kiln PROGRAM. Needs Python only.
"""

import argparse
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import graphs  # noqa: E402

OPTIONS = None


class Terminal:
    """A program on a pty, and the text that its escape sequences leave on the screen."""

    def __init__(self, command: list[str], columns: int, rows: int, environment: dict):
        self.columns, self.rows = columns, rows
        self.raw = ""
        self.started = time.monotonic()
        pid, self.fd = pty.fork()
        if pid == 0:
            os.environ.clear()
            os.environ.update(environment)
            time.sleep(0.2)  # until the terminal has its size
            os.execv(command[0], command)
        self.pid = pid
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int):
        self.columns, self.rows = columns, rows
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds: float):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.fd], [], [], left)[0]:
                continue
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                return
            if not data:
                return
            self.raw += data.decode(errors="replace")

    def until(self, condition, what: str, seconds: float = 20):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"waited for {what}; the terminal got {self.raw[-2000:]!r}")
            self.read(0.1)

    def wait(self, text: str):
        self.until(lambda: text in self.raw, repr(text))

    def last_frame(self) -> list[str]:
        """Lines since the last jump to the first line, without colours."""
        frame = self.raw[self.raw.rindex("\033[H") + 3:]
        frame = frame.split("\033[J")[0]
        return [re.sub(r"\033\[[0-9;?]*[A-Za-z]", "", line) for line in frame.replace("\r", "").split("\n")]

    def exit_code(self, seconds: float = 10) -> int:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.read(0.2)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError("kiln top did not end")


class TopTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Cleanups also run where this method fails half-way.
        cls.folder = tempfile.TemporaryDirectory(prefix="kiln-top-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.environment = {"PATH": os.environ["PATH"], "HOME": cls.folder.name, "XDG_CONFIG_HOME": cls.folder.name,
                           "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        cls.server = subprocess.Popen(
            [OPTIONS.kilnd, "--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0",
             f"--data-dir={cls.folder.name}/data", "--workers=1"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        cls.addClassCleanup(cls.stop_server)
        cls.address = re.search(r"grpc ([^,]+),", cls.server.stdout.readline())[1]
        path = f"{cls.folder.name}/g.kgraph"
        with open(path, "wb") as file:
            file.write(graphs.attention_like("evil\033[2Jname\rx", 32))
        subprocess.run([OPTIONS.kiln, "compile", path, "--server", cls.address], check=True,
                       stdout=subprocess.DEVNULL, env=cls.environment)

    @classmethod
    def stop_server(cls):
        cls.server.terminate()
        cls.server.wait(30)
        cls.server.stdout.close()

    def top(self, *flags: str, columns: int = 80, rows: int = 24, **environment) -> Terminal:
        return Terminal([OPTIONS.kiln, "top", "--server", self.address, *flags], columns, rows,
                        {**self.environment, **environment})

    def once(self, *flags: str) -> str:
        return subprocess.run([OPTIONS.kiln, "top", "--server", self.address, *flags], check=True, text=True,
                              stdout=subprocess.PIPE, env=self.environment).stdout

    def test_it_is_live_on_eighty_by_twentyfour_until_q(self):
        terminal = self.top()
        terminal.wait("evil?[2Jname?x")
        self.assertIn("\033[?1049h", terminal.raw)
        frame = terminal.last_frame()
        self.assertLessEqual(len(frame), 24)
        self.assertLessEqual(max(map(len, frame)), 80)
        self.assertIn(f"{self.address}  serving", frame[0])
        frames = terminal.raw.count("\033[H")
        terminal.until(lambda: terminal.raw.count("\033[H") >= frames + 4, "four more frames")
        # One a second since it began; the first is there at once, and the terminal's size may bring
        # two more.
        seconds = time.monotonic() - terminal.started
        self.assertLessEqual(terminal.raw.count("\033[H"), seconds + 3)
        os.write(terminal.fd, b"q")
        self.assertEqual(terminal.exit_code(), 0)
        self.assertTrue(terminal.raw.rstrip().endswith("\033[?1049l"), terminal.raw[-40:])
        # Nothing of a name's own escape sequences went through.
        self.assertNotIn("evil\033", terminal.raw)

    def test_it_follows_the_terminals_size(self):
        terminal = self.top()
        terminal.wait("COMPILES")
        terminal.resize(50, 9)
        os.kill(terminal.pid, signal.SIGWINCH)
        terminal.until(lambda: len(terminal.last_frame()) <= 9 and max(map(len, terminal.last_frame())) <= 50,
                       "a frame of 50 by 9")
        os.write(terminal.fd, b"q")
        self.assertEqual(terminal.exit_code(), 0)

    def test_no_color_means_none_and_ctrl_c_restores_the_terminal(self):
        terminal = self.top(NO_COLOR="1")
        terminal.wait("COMPILES")
        self.assertEqual(re.findall(r"\033\[[0-9;]*m", terminal.raw), [])
        os.write(terminal.fd, b"\003")
        self.assertEqual(terminal.exit_code(), 0)
        self.assertIn("\033[?1049l", terminal.raw)
        colored = self.top()
        colored.wait("\033[7m")
        os.write(colored.fd, b"q")
        self.assertEqual(colored.exit_code(), 0)

    def test_once_and_json_are_for_scripts(self):
        text = self.once("--once")
        self.assertIn("evil?[2Jname?x", text)
        self.assertNotIn("\033", text)
        activity = json.loads(self.once("--json"))
        self.assertEqual(activity["recent"][0]["graph"], "evil\033[2Jname\rx")
        self.assertEqual(int(activity["compiles"]), 1)

    def test_no_server_is_exit_code_three(self):
        code = subprocess.run([OPTIONS.kiln, "top", "--server", "127.0.0.1:1", "--once"], env=self.environment,
                              stderr=subprocess.DEVNULL).returncode
        self.assertEqual(code, 3)

    def test_zz_a_server_that_goes_is_said_in_the_first_line(self):
        terminal = self.top()
        terminal.wait("COMPILES")
        self.server.terminate()
        self.server.wait(30)
        terminal.until(lambda: "serving" not in terminal.last_frame()[0], "the news")
        self.assertIn(self.address, terminal.last_frame()[0])
        os.write(terminal.fd, b"q")
        self.assertEqual(terminal.exit_code(), 0)


def main() -> int:
    global OPTIONS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kilnd", required=True)
    parser.add_argument("--kiln", required=True)
    OPTIONS = parser.parse_args()
    result = unittest.TextTestRunner(verbosity=2).run(unittest.TestLoader().loadTestsFromTestCase(TopTest))
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
