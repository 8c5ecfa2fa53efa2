#!/usr/bin/env python3
"""The pack of the preset `portable`: what its files ask of a system and show to a process, and that its
kilnd is isolated and makes the machine code that the build under test makes."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from kilnd import BUILD, ROOT, Kilnd, eventually, need, skip

sys.path.insert(0, str(ROOT / "tests"))
import portable_pack

MAX_PACK_BYTES = 64 << 20
NEWEST_GLIBC = (2, 36)
GLIBC_LIBRARIES = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
# What each file may need besides, and the names that it may show.
FILES = {
    "bin/kilnd": (set(), r"(?!)"),
    "bin/kiln": (set(), r"(?!)"),
    "lib/libkiln.so.0": (set(), r"kiln_\w+|_ZNK?4kiln\w+"),  # C, and client.h's classes
    "lib/libgcu_runtime.so": (set(), r"gcu\w+"),
    "python/kiln_torch/_kiln.abi3.so": ({"libkiln.so.0"}, r"PyInit__kiln"),
}
GRAPH = ROOT / "deploy/graphs/bert-base.kgraph"
READELF = need("readelf")


def readelf(what: str, file: pathlib.Path) -> str:
    command = [READELF, "--wide", what, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def is_elf(file: pathlib.Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) == b"\x7fELF"


def shown_symbols(file: pathlib.Path) -> list[str]:
    """Names in the dynamic symbol table that the file defines; without copies of glibc's variables."""
    rows = (line.split() for line in readelf("--dyn-syms", file).splitlines())
    names = [row[7] for row in rows if len(row) >= 8 and row[0][:-1].isdigit() and row[6] != "UND"]
    return [name for name in names if "@GLIBC_" not in name]


class Pack(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="kiln-portable-")
        cls.addClassCleanup(folder.cleanup)
        cls.root = portable_pack.unpack(pathlib.Path(folder.name))

    def test_it_is_small(self):
        self.assertLess(portable_pack.find().stat().st_size, MAX_PACK_BYTES)

    def test_no_other_file_is_a_program(self):
        files = (f for f in self.root.rglob("*") if f.is_file() and not f.is_symlink())
        self.assertEqual({str(f.relative_to(self.root)) for f in files if is_elf(f)}, set(FILES))

    def test_nothing_but_glibc_is_needed(self):
        for name, (others, _) in FILES.items():
            with self.subTest(file=name):
                needed = re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("--dynamic", self.root / name))
                self.assertLessEqual(set(needed), GLIBC_LIBRARIES | others)

    def test_an_old_glibc_suffices(self):
        for name in FILES:
            with self.subTest(file=name):
                text = readelf("--version-info", self.root / name)
                versions = re.findall(r"Name: GLIBC_(\d[\d.]+)", text)
                newest = max(tuple(map(int, version.split("."))) for version in versions)
                self.assertLessEqual(newest, NEWEST_GLIBC)

    def test_only_what_is_kilns_is_shown(self):
        for name, (_, pattern) in FILES.items():
            with self.subTest(file=name):
                shown = shown_symbols(self.root / name)
                self.assertEqual([s for s in shown if not re.fullmatch(pattern, s)], [])

    def test_libraries_are_looked_for_in_the_pack_alone(self):
        for name in FILES:
            with self.subTest(file=name):
                text = readelf("--dynamic", self.root / name)
                paths = ":".join(re.findall(r"\(R(?:UN)?PATH\).*\[(.+)\]", text)).split(":")
                self.assertEqual([p for p in paths if p and not p.startswith("$ORIGIN")], [])

    def test_workers_are_isolated_as_much_as_those_of_another_build(self):
        def gaps(programs: pathlib.Path) -> list[str]:
            with Kilnd(programs=programs) as server:
                pattern = re.compile(r"^kiln_worker_isolation_gaps (\d+)", re.M)
                ready = re.compile(r"^kiln_workers\{state=\"idle\"\} [1-9]", re.M)
                self.assertTrue(eventually(lambda: ready.search(server.get("/metrics"))))
                return pattern.findall(server.get("/metrics"))

        self.assertEqual(gaps(self.root / "bin"), gaps(BUILD / "bin"))

    def test_it_compiles_what_another_build_compiles(self):
        def compiled(programs: pathlib.Path) -> tuple[dict, str]:
            with Kilnd(programs=programs) as server:
                done = server.kiln("compile", str(GRAPH), "--emit", "asm")
                self.assertEqual(done.returncode, 0, done.stderr)
                return json.loads(server.kiln("status", "--json").stdout), done.stdout

        build, assembly = compiled(self.root / "bin")
        other_build, other_assembly = compiled(BUILD / "bin")
        if build["compiler_build"] != other_build["compiler_build"]:
            self.skipTest("the pack was made of other sources")
        self.assertTrue(assembly == other_assembly, "one compiler build, two programs")


if __name__ == "__main__":
    try:
        portable_pack.find()
    except portable_pack.Absent as reason:
        skip(str(reason))
    unittest.main()
