"""torch's key of its own sources, which all keys of its caches have, remembered by other processes.

torch reads and hashes its 2300 files for it in every process, which takes a tenth of a second. Here their
names, sizes and times of change stand for what is in them, as they do for Python where it decides whether
a compiled file is still that of its source. The key itself is torch's, so whoever shares the cache shares
its entries, TorchInductor's too.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch._inductor.codecache import torch_key

_LOG = logging.getLogger("kiln_torch")
_SOURCES = (".py", ".so", ".cpp", ".ld")
_WITHOUT_SOURCES = ("__pycache__", "bin", "include")
_KEY_BYTES = hashlib.sha256().digest_size


def _state_of(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name not in _WITHOUT_SOURCES:
                    yield from _state_of(entry.path)
            elif entry.name.endswith(_SOURCES):
                found = entry.stat()
                yield f"{entry.path} {found.st_size} {found.st_mtime_ns}"


def state_of(folder: str) -> str:
    """Of the sources in a folder: another one where any of them has changed."""
    return hashlib.sha256("\n".join(sorted(_state_of(folder))).encode()).hexdigest()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)


@functools.cache
def remember(cache: str) -> None:
    """Has torch know its key, from the folder `cache` or for others that look there; that folder must be
    this user's alone. Where anything is in the way, torch finds its key as ever."""
    if not hasattr(torch_key, "set"):
        return
    try:
        state = state_of(os.path.dirname(torch.__file__))
        path = Path(cache) / "kiln" / f"torch-{state}"
        if path.is_file():
            key = path.read_bytes()
            if len(key) == _KEY_BYTES:
                torch_key.set(key)  # a RuntimeError where torch has it by now
                return
        _write(path, torch_key())
    except (OSError, RuntimeError) as error:
        _LOG.info("torch's key of its sources is not remembered: %s", error)
