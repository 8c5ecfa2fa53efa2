"""Packs the Python files with the extension and the client library that CMake has built.

Build first (deploy/quickstart.sh does). KILN_BUILD names the build folder, default build/release.
"""

import os
import pathlib
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KILN_BUILD", ROOT / "build" / "release"))


class BuildWithLibraries(build_py):
    def run(self):
        super().run()
        target = pathlib.Path(self.build_lib) / "kiln_torch"
        for library in (
            BUILD / "python" / "kiln_torch" / "_kiln.abi3.so",
            BUILD / "lib" / "libkiln.so.0",
        ):
            if not library.exists():
                raise SystemExit(f"error: {library} is missing: build Kiln first")
            shutil.copy(library, target)


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": BuildWithLibraries}, distclass=BinaryDistribution)
