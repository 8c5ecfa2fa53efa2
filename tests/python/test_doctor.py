"""`python -m kiln_torch`: what it says, and that its exit code says whether all works."""

import os
import subprocess
import sys


def doctor(**variables):
    command = [sys.executable, "-m", "kiln_torch"]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_where_all_works(server, tmp_path):
    code, text = doctor(KILN_LOCAL_CACHE=str(tmp_path / "cache"))
    assert code == 0, text
    assert f"{server.address} (KILN_SERVER): kilnd 0.1.0" in text
    assert "native: float32, bfloat16, products, attention" in text
    assert "linalg: native, and through torch aten._linalg_svd.default" in text
    assert str(tmp_path / "cache") in text and "torch's: used" in text
    assert len(text.splitlines()) <= 24


def test_without_a_server():
    code, text = doctor(KILN_SERVER="127.0.0.1:1", KILN_TIMEOUT_S="1")
    assert code == 1
    wrong = [line for line in text.splitlines() if line.endswith("<- wrong")]
    assert [line.split()[0] for line in wrong] == ["server", "compile"]
    assert "127.0.0.1:1" in wrong[0]


def test_with_a_wrong_variable():
    code, text = doctor(KILN_PRIORITY="high")
    assert code == 1
    assert "expected 'interactive' or 'warmup'   <- wrong" in text
