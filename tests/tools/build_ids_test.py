#!/usr/bin/env python3
"""Which hashes of a build change with which source: a target's own with its own files, and with
nothing of another's.

Usage: build_ids_test.py CMAKE ROOT SHARED TARGET=PATTERNS...   with the patterns that the build has,
";" between them.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CMAKE, ROOT, SHARED, TARGETS = "", Path(), "", {}


class BuildIds(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name in ("compiler", "proto"):
            shutil.copytree(ROOT / name, self.root / name)

    def hash(self, patterns: str, others: str = "") -> str:
        output = self.root / "hash.cc"
        defines = {
            "ROOT": self.root,
            "PATTERNS": patterns,
            "EXCEPT": others,
            "HEADER": "h",
            "NAMESPACE": "n",
            "NAME": "kHash",
            "OUTPUT": output,
        }
        command = [CMAKE, *(f"-D{name}={value}" for name, value in defines.items())]
        subprocess.run([*command, "-P", ROOT / "compiler/source_hash.cmake"], check=True)
        found = re.search(r'"([0-9a-f]{16})"', output.read_text())
        self.assertIsNotNone(found)
        return found[1]

    def hashes(self) -> dict[str, str]:
        out = {name: self.hash(patterns) for name, patterns in TARGETS.items()}
        out["shared"] = self.hash(SHARED, ";".join(TARGETS.values()))
        return out

    def changed_by(self, path: str) -> set[str]:
        before = self.hashes()
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as out:
            out.write("// changed\n")
        after = self.hashes()
        return {name for name in after if after[name] != before[name]}

    def test_a_targets_own_files_change_its_hash_alone(self):
        for target in TARGETS:
            header = next((self.root / "compiler/codegen" / target).glob("*_target.h"))
            with self.subTest(target=target):
                self.assertEqual(self.changed_by(str(header.relative_to(self.root))), {target})

    def test_a_targets_schedules_are_its_own(self):
        self.assertEqual(self.changed_by("compiler/schedule/cpu/choose.cc"), {"cpp"})

    def test_the_toolchain_is_its_users(self):
        self.assertEqual(self.changed_by("compiler/toolchain/clang.cc"), {"cpp", "ptx"})

    def test_what_no_target_claims_is_everyones(self):
        for path in ("compiler/codegen/target.h", "compiler/codegen/elsewhere/new.cc"):
            with self.subTest(path=path):
                self.assertEqual(self.changed_by(path), {"shared"})


if __name__ == "__main__":
    CMAKE, ROOT, SHARED = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    TARGETS = dict(argument.split("=", 1) for argument in sys.argv[4:])
    unittest.main(argv=sys.argv[:1])
