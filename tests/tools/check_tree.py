#!/usr/bin/env python3
"""Checks the tree's own rules: layering, file sizes, formatting, tests' files, paths in READMEs.

Usage: check_tree.py [ROOT]. Prints each breach as "path:line: what is wrong" and exits 1 if there is
any. Needs git; formatting is checked where clang-format-19 is installed.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

MAX_LINES = 900
TOP = {"proto", "server", "compiler", "cache", "client", "deploy", "tests"}
TOP_FILES = {"CMakeLists.txt", "CMakePresets.json", "README.md", "LICENSE"}

# What a folder's files may include besides the folder itself: the first prefix that matches counts.
ALLOWED = [
    ("proto/", ("proto/",)),
    ("cache/remote/", ("proto/", "cache/")),
    ("cache/", ("proto/",)),
    ("compiler/compiler", ("proto/", "compiler/")),
    ("compiler/codegen/targets", ("compiler/codegen/",)),
    # A GCU's host is a target of its own.
    (
        "compiler/codegen/gcu/",
        (
            "proto/base/",
            "proto/gcu/",
            "compiler/ir/",
            "compiler/schedule/",
            "compiler/codegen/target.h",
            "compiler/codegen/kernel_archive.h",
            "compiler/codegen/gcu/",
            "compiler/codegen/cpp/cpp_target.h",
            "compiler/toolchain/gcu/",
        ),
    ),
    # A folder below is a target: none includes another's.
    (
        "compiler/codegen/",
        (
            "proto/base/",
            "compiler/ir/",
            "compiler/schedule/",
            "compiler/codegen/target.h",
            "compiler/codegen/kernel_archive.h",
            "compiler/codegen/source/",
            "compiler/toolchain/",
        ),
    ),
    # A folder below is what one target chooses.
    ("compiler/schedule/ptx/", ("proto/base/", "compiler/ir/", "compiler/schedule/")),
    ("compiler/schedule/gcu/", ("proto/base/", "proto/gcu/", "compiler/ir/", "compiler/schedule/")),
    (
        "compiler/schedule/cpu/",
        ("proto/base/", "compiler/ir/", "compiler/memory/", "compiler/schedule/"),
    ),
    ("compiler/schedule/", ("proto/base/", "compiler/ir/")),
    ("compiler/ir/", ("proto/base/",)),
    ("compiler/graph/", ("proto/", "compiler/ir/")),
    ("compiler/lowering/", ("proto/base/", "compiler/graph/", "compiler/ir/")),
    ("compiler/fusion/", ("proto/base/", "compiler/ir/")),
    ("compiler/memory/", ("proto/base/", "compiler/ir/")),
    ("compiler/toolchain/gcu/", ("proto/base/", "proto/gcu/")),
    ("compiler/toolchain/", ("proto/base/",)),
    ("compiler/", ("proto/", "compiler/")),
    # The simulator shares the instruction table with the compiler, and nothing else.
    ("client/gcu_simulator/", ("proto/gcu/", "client/gcu_simulator/", "client/include/gcu/")),
    ("client/", ("proto/", "client/")),
    ("server/workers/worker", ("proto/", "compiler/compiler.h")),
    ("server/workers/", ("proto/",)),
    ("server/net/", ("proto/", "server/address.h")),
    ("server/rpc/", ("proto/", "server/address.h", "server/net/")),
    ("server/security/", ("proto/",)),
    (
        "server/observe/",
        ("proto/", "cache/", "server/security/caller.h", "server/workers/worker_process.h"),
    ),
    (
        "server/jobs/",
        ("proto/", "cache/", "server/observe/", "server/security/caller.h", "server/workers/"),
    ),
    (
        "server/calls/",
        (
            "proto/",
            "cache/",
            "server/jobs/",
            "server/observe/",
            "server/rpc/",
            "server/security/",
            "server/workers/",
        ),
    ),
    (
        "server/web/",
        (
            "proto/",
            "cache/",
            "server/address.h",
            "server/jobs/",
            "server/net/",
            "server/observe/",
            "server/workers/",
        ),
    ),
    ("server/", ("proto/", "compiler/compiler.h", "cache/", "server/")),
]
INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"')
OURS = re.compile(r"^(proto|compiler|cache|server|client|tests)/")


def tracked_files(root: Path) -> list[str]:
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [name for name in out.splitlines() if (root / name).is_file()]


def check_layering(name: str, lines: list[str]) -> list[str]:
    if name.startswith("tests/"):
        return []
    allowed = next((targets for prefix, targets in ALLOWED if name.startswith(prefix)), None)
    folder = name.rsplit("/", 1)[0] + "/"
    found = []
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match or not OURS.match(match[1]):
            continue
        target = match[1]
        if target.startswith(folder):
            continue
        if allowed is None or not target.startswith(allowed):
            found.append(f"{name}:{number}: may not include {target}")
    return found


def check_top_level(names: list[str]) -> list[str]:
    found = []
    for name in names:
        top, _, rest = name.partition("/")
        if top.startswith("."):
            continue
        if (rest and top not in TOP) or (not rest and top not in TOP_FILES):
            found.append(f"{name}:1: {top} has no place at the top level")
    return found


def check_temporary_files(name: str, lines: list[str]) -> list[str]:
    """Tests run at the same time: each has a folder of its own for its files."""
    if not name.startswith("tests/") or name == "tests/temp_dir.h":
        return []
    return [
        f"{name}:{number}: its files' folder is a TempDir of tests/temp_dir.h"
        for number, line in enumerate(lines, 1)
        if re.search(r"testing::TempDir\(|temp_directory_path\(|mkdtemp\(|mkstemps?\(", line)
    ]


def check_readme_paths(root: Path, name: str, lines: list[str]) -> list[str]:
    """Every `path/like/this` in a README exists, from the root or from the README's folder."""
    found = []
    here = (root / name).parent
    for number, line in enumerate(lines, 1):
        for quoted in re.findall(r"`([^`]+)`", line):
            path = quoted.split()[0]
            if "/" not in path or not re.fullmatch(r"[\w./-]+", path) or path.startswith("/"):
                continue
            if path.startswith(("build/", "~/")):
                continue
            if not ((root / path).exists() or (here / path).exists()):
                found.append(f"{name}:{number}: no such path: {path}")
    return found


def check_format(root: Path, names: list[str]) -> list[str]:
    tool = shutil.which("clang-format-19")
    if tool is None:
        print("formatting: not checked, clang-format-19 is not installed")
        return []
    out = subprocess.run(
        [tool, "--dry-run", *names], cwd=root, capture_output=True, text=True
    ).stderr
    return sorted({
        f"{m[1]}:{m[2]}: not formatted: clang-format-19 -i {m[1]}"
        for m in re.finditer(r"^(\S+?):(\d+):\d+: warning: ", out, re.M)
    })


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    names = tracked_files(root)
    found = check_top_level(names)
    sources = [n for n in names if n.endswith((".cc", ".h"))]
    for name in names:
        if not name.endswith((".cc", ".h", ".py", ".sh", ".proto", "CMakeLists.txt", "README.md")):
            continue
        lines = (root / name).read_text(encoding="utf-8").splitlines()
        if len(lines) > MAX_LINES:
            found.append(f"{name}:{len(lines)}: longer than {MAX_LINES} lines")
        if name in sources:
            found += check_layering(name, lines)
            found += check_temporary_files(name, lines)
        if name.endswith("README.md"):
            found += check_readme_paths(root, name, lines)
    found += check_format(root, sources)
    for breach in found:
        print(breach)
    print(f"check_tree: {len(names)} files, {len(found)} breaches")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
