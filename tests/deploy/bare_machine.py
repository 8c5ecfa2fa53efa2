#!/usr/bin/env python3
"""Runs both commands of the README on a bare Debian: in a new root that has what every Debian has and
no more, on a fresh clone of the last commit.

What the root has from this machine: its network, where apt and pip get things from (sources, proxies,
certificates, folders that pip is pointed to), and the packages that apt has already downloaded. Not its
files, programs, environment, processes, or ccache. Needs root and mmdebstrap; exits with 77, saying why,
where that or the network is missing. Ends with the exit status of the first command that fails.
"""

import argparse
import configparser
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77  # what ctest takes for "skipped"
CLONE = "/root/kiln"
ARCHIVES = pathlib.Path("/var/cache/apt/archives")
QUICKSTART = "deploy/quickstart.sh"
TESTS = "tests/run.sh"
PORTS = (7461, 7462)  # what quickstart's kilnd listens on: the network is this machine's

# The part of each command that fits in continuous integration: its packages, its configuration, and one
# target that is small.
BUILD = "cmake --build --preset release --target"
QUICKSTART_PART = f"{QUICKSTART} --stop-after configure && {BUILD} kiln_proto_grpc"
TESTS_PART = f"{TESTS} --stop-after configure && {BUILD} proto_test && build/release/tests/proto_test --gtest_brief=1"

# Run in new namespaces: $1 becomes the root of a machine of its own and $2 runs there; then the paths of
# this machine that it can read.
ENTER = r"""
set -euo pipefail
root="$1" command="$2"
shift 2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for number in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${number%:*}" "$root/dev/${number#*:}"; done
for path in "$@"; do
  if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root${path%/*}"; touch "$root$path"; fi
  mount --bind "$path" "$root$path"
  mount -o remount,bind,ro "$root$path"
done
hostname bare
cd "$root"
mkdir -p mnt/old
pivot_root . mnt/old
umount -l /mnt/old
cd "$HOME"
exec bash -c "$command"
"""


def say(text: str) -> None:
    print(f"== bare machine: {text}", flush=True)


def skip(reason: str) -> None:
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def apt_sources(suite: str) -> list[str]:
    """This machine's lines of sources for the suite and its updates; none where it is another system's."""
    found = output("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)",
                   "Identifier: Packages")  # fmt: skip
    lines = []
    for line in found.splitlines():
        uri, release, component, origin = line.split(" ", 3)
        # Before the first apt-get update the origin is not known yet, and its field stays.
        if release.split("-")[0] == suite and origin in ("Debian", "", "$(ORIGIN)"):
            lines.append(f"deb {uri} {release} {component}\n")
    return lines


def apt_settings() -> list[str]:
    """How this machine's apt reaches its sources: proxies, certificates, what it accepts."""
    kept = re.compile(r'Acquire::(?!IndexTargets|Changelogs|CompressionTypes|cdrom)\S+ "[^"]')
    return [line + "\n" for line in output("apt-config", "dump").splitlines() if kept.match(line)]


def pip_files() -> list[pathlib.Path]:
    """The files that pip reads its settings from, whether or not this machine has pip."""
    home = pathlib.Path.home()
    own = pathlib.Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [pathlib.Path("/etc/xdg/pip/pip.conf"), pathlib.Path("/etc/pip.conf"),
             home / ".pip/pip.conf", own / "pip/pip.conf"]  # fmt: skip
    if os.environ.get("PIP_CONFIG_FILE"):
        files.append(pathlib.Path(os.environ["PIP_CONFIG_FILE"]))
    return [file for file in files if file.is_file()]


def pip_settings() -> dict[str, dict[str, str]]:
    """What those files say, by section; a later file goes before an earlier one."""
    parser = configparser.RawConfigParser()
    parser.read(pip_files())
    return {section: dict(parser[section]) for section in parser.sections()}


def environment() -> dict[str, str]:
    """What the commands find set, besides what a login sets: how to reach the network and pip's indexes."""
    proxies = re.compile(r"(https?|ftp|all|no)_proxy", re.I)
    carried = {name: value for name, value in os.environ.items()
               if name == "KILN_TORCH_INDEX" or proxies.fullmatch(name)
               or (name.startswith("PIP_") and name != "PIP_CONFIG_FILE")}  # fmt: skip
    return {**carried, "HOME": "/root", "USER": "root", "SHELL": "/bin/bash",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}  # fmt: skip


def named_paths(values: list[str]) -> list[str]:
    """The folders and files of this machine that pip's settings name; certificates of the system's own
    folder the root makes for itself."""
    found = set()
    for word in (word.removeprefix("file://") for value in values for word in value.split()):
        path = pathlib.Path(word)
        if not path.is_absolute() or path.is_relative_to("/etc/ssl") or not path.exists():
            continue
        # The pages of an index name files beside it.
        found.add(str(path.parent if path.name == "simple" else path))
    return sorted(found)


class Machine:
    """A root folder, and commands in it."""

    def __init__(self, root: pathlib.Path, suite: str) -> None:
        self.root = root.resolve()
        self.suite = suite

    def use(self, script: str) -> int:
        if not (self.root / "etc/debian_version").exists():
            start = time.monotonic()
            self.make()
            say(f"Debian {self.suite} ({time.monotonic() - start:.0f} s)")
        self.settle()
        if not (self.root / CLONE.lstrip("/")).exists():
            self.clone()
        self.lend_packages()
        return self.run(script)

    def make(self) -> None:
        sources = apt_sources(self.suite)
        with tempfile.TemporaryDirectory(prefix="kiln-apt-") as folder:
            settings = pathlib.Path(folder, "apt.conf")
            settings.write_text("".join(apt_settings()))
            command = ["mmdebstrap", "--quiet", "--variant=minbase", "--dpkgopt=force-unsafe-io", f"--aptopt={settings}"]
            if any("https:" in line for line in sources):
                command.append("--include=ca-certificates")
            for kept in ("auth.conf", "auth.conf.d", "keyrings", "trusted.gpg.d"):
                if pathlib.Path("/etc/apt", kept).exists():
                    command.append(f'--setup-hook=cp -a /etc/apt/{kept} "$1/etc/apt/"')
            command += [self.suite, str(self.root)]
            command += ["-"] if sources else []
            done = subprocess.run(command, input="".join(sources), capture_output=True, text=True,
                                  check=False)  # fmt: skip
        if done.returncode != 0:
            if re.search("Could not (resolve|connect)|Temporary failure|Network is unreachable", done.stderr):
                skip(f"Debian's packages cannot be reached: {done.stderr[-500:]}")
            raise RuntimeError(f"no root can be made: {done.stdout}{done.stderr}")

    def settle(self) -> None:
        """What Debian's installer writes, and where pip gets things from."""
        (self.root / "etc/hosts").write_text("127.0.0.1 localhost bare\n::1 localhost\n")
        (self.root / "etc/hostname").write_text("bare\n")
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
        own = pathlib.Path("/usr/local/share/ca-certificates")  # taken up by the package ca-certificates
        if own.is_dir():
            shutil.copytree(own, self.root / own.relative_to("/"), dirs_exist_ok=True)
        with (self.root / "etc/pip.conf").open("w") as file:
            parser = configparser.RawConfigParser()
            parser.read_dict(pip_settings())
            parser.write(file)

    def clone(self) -> None:
        subprocess.run(["git", "clone", "--quiet", ROOT, self.root / CLONE.lstrip("/")], check=True)

    def lend_packages(self) -> None:
        """Downloaded packages as hard links: apt checks their digests, and takes those that it wants."""
        target = self.root / ARCHIVES.relative_to("/")
        try:
            for package in ARCHIVES.glob("*.deb"):
                if not (target / package.name).exists():
                    os.link(package, target / package.name)
        except OSError as error:
            print(f"apt downloads everything anew: {error}")

    def run(self, script: str) -> int:
        """Runs a script in the clone; what it starts ends with it."""
        settings = [value for section in pip_settings().values() for value in section.values()]
        outside = environment()
        paths = named_paths([*settings, *(outside[name] for name in outside if name.startswith("PIP_"))])
        namespaces = ["--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
        inside = f"cd {CLONE}\n{script}"
        return subprocess.run(
            ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, "bash", "-c", ENTER, "enter", self.root, inside, *paths],
            env=outside, stdin=subprocess.DEVNULL, check=False).returncode  # fmt: skip


def in_use(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def need_what_it_takes() -> None:
    if os.geteuid() != 0:
        skip("only root makes a root of its own")
    for tool in ("mmdebstrap", "unshare", "git"):
        if shutil.which(tool) is None:
            skip(f"{tool} is not installed")
    if subprocess.run(["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "true"],
                      capture_output=True, check=False).returncode != 0:  # fmt: skip
        skip("no namespaces can be made here")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quickstart", action="store_true", help=f"run {QUICKSTART} only")
    parser.add_argument("--tests", action="store_true", help=f"run {TESTS} only")
    parser.add_argument("--part", action="store_true",
                        help="of each command: install its packages, configure, build one small target")
    parser.add_argument("--run", metavar="COMMAND", help="run this in the clone instead")
    parser.add_argument("--root", type=pathlib.Path, metavar="DIR",
                        help="keep the root in DIR; one that is there already is used as it is")
    parser.add_argument("--suite", default="bookworm", help="Debian's release (default: %(default)s)")
    return parser.parse_args()  # fmt: skip


def script(args: argparse.Namespace) -> str:
    """The commands, one after another as on one machine; the first that fails ends it."""
    if args.run:
        return args.run
    both = args.quickstart == args.tests
    lines = ["set -e"]
    for wanted, command, part in ((args.quickstart, QUICKSTART, QUICKSTART_PART),
                                  (args.tests, TESTS, TESTS_PART)):  # fmt: skip
        if both or wanted:
            lines.append(f'echo "== bare machine: {command} ($SECONDS s)"')
            lines.append(part if args.part else command)
    lines.append('echo "== bare machine: passed ($SECONDS s)"')
    return "\n".join(lines)


def main() -> int:
    args = parse()
    need_what_it_takes()
    if not (args.part or args.run) and (busy := [port for port in PORTS if in_use(port)]):
        skip(f"port {busy[0]} is in use: quickstart would meet a server that is not its own")
    folder = None
    if args.root is None:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="kiln-bare-"))
        folder.chmod(0o755)  # apt downloads as a user of its own
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        return Machine(args.root or folder / "root", args.suite).use(script(args))
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
