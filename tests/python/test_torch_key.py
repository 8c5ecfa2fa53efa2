"""torch's key of its sources, remembered: it is torch's own, and another one when a source changes."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import torch

from kiln_torch import torch_key

# Prints the key that torch's caches use, how often torch's sources were read for it, and what is kept.
PROGRAM = textwrap.dedent(
    """
    import os, pathlib, torch
    from torch._inductor import codecache

    read = []
    build = codecache.build_code_hash

    def counted(roots, prefix, hasher):
        read.append(prefix)
        return build(roots, prefix, hasher)

    codecache.build_code_hash = counted
    if os.environ.get("WITH_KILN") == "1":
        with torch.no_grad():
            torch.compile(torch.relu, backend="kiln")(torch.ones(3))
    print(codecache.torch_key().hex(), read.count(""))
    """
)


def key_in_a_process(**environment):
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **environment})  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    key, times = done.stdout.split()
    return key, int(times)


def test_a_second_process_has_torchs_own_key_without_reading_its_sources():
    own, _ = key_in_a_process()
    assert key_in_a_process(WITH_KILN="1") == (own, 1)
    assert key_in_a_process(WITH_KILN="1") == (own, 0)
    (kept,) = (pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "kiln").iterdir()
    assert kept.read_bytes().hex() == own
    kept.write_bytes(b"cut")
    assert key_in_a_process(WITH_KILN="1") == (own, 1)
    assert kept.read_bytes().hex() == own


@pytest.mark.parametrize("change", ["touched", "longer", "added", "removed", "renamed", "below"])
def test_a_change_of_a_source_is_another_state(change, tmp_path):
    below = tmp_path / "part"
    below.mkdir()
    first, second, third = tmp_path / "a.py", tmp_path / "b.so", below / "c.py"
    for path in (first, second, third):
        path.write_text("one")
        os.utime(path, (1, 1))
    before = torch_key.state_of(str(tmp_path))
    (tmp_path / "notes.txt").write_text("no source")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.py").write_text("none either")
    assert torch_key.state_of(str(tmp_path)) == before
    if change == "touched":
        os.utime(first, (2, 2))
    elif change == "longer":
        second.write_text("longer")
        os.utime(second, (1, 1))
    elif change == "added":
        (tmp_path / "d.py").write_text("one")
    elif change == "removed":
        second.unlink()
    elif change == "renamed":
        first.rename(tmp_path / "z.py")
    elif change == "below":
        os.utime(third, (2, 2))
    assert torch_key.state_of(str(tmp_path)) != before


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "kiln").write_text("a file where the folder would be")
    before = torch_key.torch_key()
    torch_key.remember(str(tmp_path))
    assert torch_key.torch_key() == before
    assert torch.compile(torch.relu, backend="kiln")(torch.ones(3)).sum() == 3
