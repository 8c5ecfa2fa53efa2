#!/usr/bin/env python3
"""Makes a wheel of a pack (deploy/portable/pack.sh): pip installs it beside torch, and nothing is to be
imported, set or started before torch.compile(model, backend="kiln").

  deploy/portable/wheel.py BUILD_DIR      prints the wheel's path and size; two of one build are equal

torch is no requirement in its metadata: pip would fetch another build of it than the user has.
"""

import base64
import hashlib
import pathlib
import re
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The limited API of client/python/ext/py_ref.h, and the glibc of the machine that builds, Debian 12.
TAG = "cp310-abi3-manylinux_2_36_x86_64"
WHEN = (1980, 1, 1, 0, 0, 0)

# `kiln` of the environment: pip writes its first line anew.
COMMAND = """\
#!python
import importlib.util
import os
import sys

package = os.path.dirname(importlib.util.find_spec("kiln_torch").origin)
os.execv(os.path.join(package, "bin", "kiln"), ["kiln", *sys.argv[1:]])
"""
METADATA = """\
Metadata-Version: 2.1
Name: kiln-torch
Version: {version}
Summary: torch.compile backend with its own compiler and cache
License: Apache-2.0
Requires-Python: >=3.10
Description-Content-Type: text/markdown

    model = torch.compile(model, backend="kiln")

Needs PyTorch, which you install as you need it. The compiler runs in a process of its own, which starts
with the first compile, serves all your programs and ends by itself; `kiln --help` looks into it.
"""
WHEEL = """\
Wheel-Version: 1.0
Generator: kiln
Root-Is-Purelib: false
Tag: {tag}
"""


def contents(pack: pathlib.Path, version: str) -> dict[str, tuple[bytes, int]]:
    """Name in the wheel -> bytes and mode."""
    package, info = "kiln_torch", f"kiln_torch-{version}.dist-info"
    files: dict[str, tuple[bytes, int]] = {}
    for path in sorted((pack / "python" / package).iterdir()):
        if path.suffix in (".py", ".so"):
            files[f"{package}/{path.name}"] = (path.read_bytes(), 0o755 if path.suffix == ".so" else 0o644)
    # A link is for compilers; who loads the library names the file.
    for path in sorted(path for path in (pack / "lib").iterdir() if not path.is_symlink()):
        files[f"{package}/{path.name}"] = (path.read_bytes(), 0o755)
    for path in sorted((pack / "bin").iterdir()):
        files[f"{package}/bin/{path.name}"] = (path.read_bytes(), 0o755)
    files[f"kiln_torch-{version}.data/scripts/kiln"] = (COMMAND.encode(), 0o755)
    files[f"{info}/METADATA"] = (METADATA.format(version=version).encode(), 0o644)
    files[f"{info}/WHEEL"] = (WHEEL.format(tag=TAG).encode(), 0o644)
    entry_points = pack / "python" / info / "entry_points.txt"
    files[f"{info}/entry_points.txt"] = (entry_points.read_bytes(), 0o644)
    for path in (pack / "LICENSE", *sorted((pack / "licences").iterdir())):
        files[f"{info}/licenses/{path.name}"] = (path.read_bytes(), 0o644)
    return files


def record(files: dict[str, tuple[bytes, int]], name: str) -> bytes:
    lines = []
    for path, (data, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}")
    return "\n".join([*lines, f"{name},,", ""]).encode()


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    build = pathlib.Path(sys.argv[1])
    cache = (build / "CMakeCache.txt").read_text()
    version = re.search(r"^CMAKE_PROJECT_VERSION:STATIC=(.*)$", cache, re.MULTILINE)[1]
    files = contents(build / f"kiln-{version}-linux-x86_64", version)
    name = f"kiln_torch-{version}.dist-info/RECORD"
    files[name] = (record(files, name), 0o644)
    wheel = build / f"kiln_torch-{version}-{TAG}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
        for path, (data, mode) in files.items():
            entry = zipfile.ZipInfo(path, WHEN)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(entry, data, compresslevel=9)
    print(f"{wheel}: {wheel.stat().st_size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
