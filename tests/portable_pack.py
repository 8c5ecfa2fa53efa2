"""The pack of the preset `portable`, for the tests of it; where nobody has made one, they are skipped."""

import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "portable"


class Absent(Exception):
    """Why there is no pack to test."""


def find() -> pathlib.Path:
    """What KILN_PORTABLE_PACK names, else the pack of the preset's build. Raises Absent."""
    named = os.environ.get("KILN_PORTABLE_PACK")
    packs = [pathlib.Path(named)] if named else sorted(BUILD.glob("kiln-*-linux-x86_64.tar.zst"))
    packs = [pack for pack in packs if pack.is_file()]
    if not packs:
        raise Absent("there is no pack: deploy/portable.sh makes one")
    if shutil.which("zstd") is None:
        raise Absent("zstd is not installed")
    return packs[-1]


def unpack(folder: pathlib.Path) -> pathlib.Path:
    """The folder in `folder` that the pack becomes. Raises Absent."""
    subprocess.run(["tar", "--zstd", "-xf", find(), "-C", folder], check=True)
    (unpacked,) = folder.iterdir()
    return unpacked
