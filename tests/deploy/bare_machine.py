#!/usr/bin/env python3
"""Runs both commands of the README on a bare Debian: in a new root that has what every Debian has and
no more, on a fresh clone of the last commit.

What the root has from this machine: its network, where apt and pip get things from (sources, proxies,
certificates, folders that pip is pointed to), and the packages that apt has already downloaded. Not its
files, programs, environment, processes, or ccache. Needs root and mmdebstrap; exits with 77, saying why,
where that, the network or the space is missing. Ends with the exit status of the first command that fails.
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
from collections.abc import Callable, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77  # what ctest takes for "skipped"
CLONE = "/root/kiln"
ARCHIVES = "/var/cache/apt/archives"
CERTIFICATES = "/usr/local/share/ca-certificates"  # this machine's own; Debian's package takes them up
SUITES = ("bookworm", "trixie")  # of what has to run on more than the release that builds it
PORTS = (7461, 7462)  # quickstart's kilnd listens there, and the network is this machine's

QUICKSTART = "deploy/quickstart.sh"
TESTS = "tests/run.sh"
# The part of each command that continuous integration has the time for: its packages, its configuration,
# and one small target.
BUILD = "cmake --build --preset release --target"
QUICKSTART_PART = f"""\
{QUICKSTART} --stop-after configure
{BUILD} kiln_proto_grpc
python3 -m venv build/venv"""
TESTS_PART = f"""\
{TESTS} --stop-after configure
{BUILD} proto_test
build/release/tests/proto_test --gtest_brief=1"""
PART_GB, WHOLE_GB = 5, 15  # of free space, with some room

NAMESPACES = ("--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child")
# Run in these: makes $1 the root, with the paths that follow $2 to read, and runs $2 there.
ENTER = r"""
set -euo pipefail
root="$1" script="$2"
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
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
for path in "$@"; do
  if [ -d "$path" ]; then
    mkdir -p "$root$path"
  else
    mkdir -p "$root${path%/*}"
    touch "$root$path"
  fi
  mount --bind "$path" "$root$path"
  mount -o remount,bind,ro "$root$path"
done
hostname bare
cd "$root"
pivot_root . mnt
umount -l /mnt
cd "$HOME"
exec bash -c "$script"
"""


def skip(reason: str) -> None:
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def output(*command: str) -> str:
    """What it prints; nothing where it fails or is not there, as on a system other than Debian."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def apt_sources(suite: str) -> list[str]:
    """This machine's sources of the suite and its updates; none where it runs something else."""
    fields = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(CODENAME)|$(ORIGIN)"
    lines = []
    targets = output("apt-get", "indextargets", "--format", fields, "Identifier: Packages")
    for line in targets.splitlines():
        uri, release, component, codename, origin = line.split("|")
        # Until its first apt-get update a machine does not know whose a source is, and the field stays.
        if origin not in ("Debian", "", "$(ORIGIN)"):
            continue
        if suite in (release.split("-")[0], codename.split("-")[0]):
            lines.append(f"deb {uri} {release} {component}\n")
    return lines


def apt_settings() -> list[str]:
    """How this machine's apt reaches its sources: proxies, certificates, which dates it accepts."""
    ours = re.compile(r'Acquire::(?!IndexTargets|Changelogs|CompressionTypes|cdrom)\S+ "[^"]')
    return [line + "\n" for line in output("apt-config", "dump").splitlines() if ours.match(line)]


def pip_settings() -> configparser.RawConfigParser:
    """What pip's files say here, whether or not this machine has pip; later files go before earlier ones."""
    home = pathlib.Path.home()
    own = pathlib.Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [
        pathlib.Path("/etc/xdg/pip/pip.conf"),
        pathlib.Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        own / "pip/pip.conf",
        pathlib.Path(os.environ.get("PIP_CONFIG_FILE") or os.devnull),
    ]
    settings = configparser.RawConfigParser()
    settings.read(file for file in files if file.is_file())
    return settings


def environment() -> dict[str, str]:
    """What is set in the root: what a login sets, and how to reach the network and pip's indexes."""
    carried = re.compile(r"(?i:(https?|ftp|all|no)_proxy)|PIP_(?!CONFIG_FILE$).*|KILN_TORCH_INDEX")
    return {
        **{name: value for name, value in os.environ.items() if carried.fullmatch(name)},
        "HOME": "/root",
        "USER": "root",
        "SHELL": "/bin/bash",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }


def pip_paths() -> list[str]:
    """The folders and files of this machine that pip is pointed to. Not the system's certificates: the
    root makes those for itself."""
    settings = pip_settings()
    values = [value for section in settings.sections() for value in settings[section].values()]
    values += [value for name, value in environment().items() if name.startswith(("PIP_", "KILN_"))]
    found = set()
    for word in (word.removeprefix("file://") for value in values for word in value.split()):
        path = pathlib.Path(word)
        if not path.is_absolute() or path.is_relative_to("/etc/ssl") or not path.exists():
            continue
        # The pages of an index name files beside it.
        found.add(str(path.parent if path.name == "simple" else path))
    return sorted(found)


class Machine:
    """A root folder, and scripts that run there. Its own apt and pip work only where `fetches`."""

    def __init__(self, root: pathlib.Path, suite: str, fetches: bool = True) -> None:
        self.root = root.resolve()
        self.suite = suite
        self.fetches = fetches

    def inside(self, path: str) -> pathlib.Path:
        return self.root / path.lstrip("/")

    def prepare(self) -> None:
        """The root, with a clone in it. What is there from an earlier time stays as it is."""
        if not self.inside("/etc/debian_version").exists():
            start = time.monotonic()
            self.install()
            print(f"== bare machine: Debian {self.suite} ({time.monotonic() - start:.0f} s)", flush=True)
        self.settle()
        self.lend_packages()
        if not self.inside(CLONE).exists():
            subprocess.run(["git", "clone", "--quiet", ROOT, self.inside(CLONE)], check=True)

    def install(self) -> None:
        sources = apt_sources(self.suite)
        with tempfile.NamedTemporaryFile("w", prefix="kiln-apt-", suffix=".conf") as settings:
            settings.writelines(apt_settings())
            settings.flush()
            command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--aptopt={settings.name}"]
            command.append("--dpkgopt=force-unsafe-io")
            if self.fetches and any("https:" in line for line in sources):
                command.append("--include=ca-certificates")
            for kept in ("auth.conf", "auth.conf.d", "keyrings", "trusted.gpg.d"):
                if os.path.exists(f"/etc/apt/{kept}"):
                    command.append(f'--setup-hook=cp -a /etc/apt/{kept} "$1/etc/apt/"')
            command += [self.suite, str(self.root), *(["-"] if sources else [])]
            done = subprocess.run(
                command, input="".join(sources), capture_output=True, text=True, check=False
            )
        if done.returncode == 0:
            return
        if re.search("Could not (resolve|connect)|Temporary failure|unreachable", done.stderr):
            skip(f"Debian's packages cannot be had: {done.stderr[-500:]}")
        raise RuntimeError(f"mmdebstrap failed: {done.stdout}{done.stderr}")

    def settle(self) -> None:
        """What Debian's installer writes, and where pip gets things from."""
        self.inside("/etc/hosts").write_text("127.0.0.1 localhost bare\n::1 localhost\n")
        self.inside("/etc/hostname").write_text("bare\n")
        self.inside("/etc/resolv.conf").unlink(missing_ok=True)
        shutil.copy("/etc/resolv.conf", self.inside("/etc/resolv.conf"))
        if os.path.isdir(CERTIFICATES):
            shutil.copytree(CERTIFICATES, self.inside(CERTIFICATES), dirs_exist_ok=True)
        with self.inside("/etc/pip.conf").open("w") as file:
            pip_settings().write(file)

    def lend_packages(self) -> None:
        """Downloaded packages as hard links: apt checks their digests, and takes those that it wants."""
        try:
            for package in pathlib.Path(ARCHIVES).glob("*.deb"):
                if not self.inside(str(package)).exists():
                    os.link(package, self.inside(str(package)))
        except OSError as error:
            print(f"apt downloads every package: {error}")

    def run(self, script: str, folder: str = CLONE) -> int:
        """Its exit status; what it starts ends with it, and it with this process."""
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", *NAMESPACES]
        command += ["bash", "-c", ENTER, "enter", str(self.root), f"cd {folder}\n{script}"]
        command += pip_paths() if self.fetches else []
        return subprocess.run(
            command, env=environment(), stdin=subprocess.DEVNULL, check=False
        ).returncode


def in_use(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def need_namespaces(*tools: str) -> None:
    if os.geteuid() != 0:
        skip("only root makes a root of its own")
    for tool in ("mmdebstrap", "unshare", "setpriv", *tools):
        if shutil.which(tool) is None:
            skip(f"{tool} is not installed")
    trial = ["unshare", *NAMESPACES, "mount", "-t", "tmpfs", "none", "/tmp"]
    done = subprocess.run(trial, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        skip(f"nothing can be mounted in namespaces: {done.stderr.strip()}")


def need_what_it_takes(args: argparse.Namespace) -> None:
    need_namespaces("git")
    where = args.root.resolve().parent if args.root else pathlib.Path(tempfile.gettempdir())
    wanted_gb = PART_GB if args.part else WHOLE_GB
    if args.run is None and shutil.disk_usage(where).free < wanted_gb << 30:
        skip(f"{where} has less than {wanted_gb} GB of free space")
    for port in PORTS:
        if not args.part and args.run is None and in_use(port):
            skip(f"port {port} is in use: quickstart would meet a server that is not its own")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quickstart", action="store_true", help=f"run {QUICKSTART} only")
    parser.add_argument("--tests", action="store_true", help=f"run {TESTS} only")
    part = "of each command: its packages, its configuration, one small target"
    parser.add_argument("--part", action="store_true", help=part)
    parser.add_argument("--run", metavar="SCRIPT", help="run this in the clone instead")
    kept = "keep the root there; one that is there already is used as it is"
    parser.add_argument("--root", type=pathlib.Path, metavar="DIR", help=kept)
    suite = "Debian's release (default: %(default)s)"
    parser.add_argument("--suite", default="bookworm", help=suite)
    return parser.parse_args()


def script(args: argparse.Namespace) -> str:
    """The commands, one after another as on one machine; the first that fails ends it."""
    if args.run is not None:
        return args.run
    both = args.quickstart == args.tests
    lines = ["set -e"]
    for wanted, whole, part in (
        (args.quickstart, QUICKSTART, QUICKSTART_PART),
        (args.tests, TESTS, TESTS_PART),
    ):
        if both or wanted:
            lines += [f'echo "== bare machine: {whole} ($SECONDS s)"', part if args.part else whole]
    lines.append('echo "== bare machine: passed ($SECONDS s)"')
    return "\n".join(lines)


def asked_suites(description: str) -> Sequence[str]:
    """Debian's releases that the command line names, else all of SUITES."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    of = f"Debian's release, several times for several (default: {' and '.join(SUITES)})"
    parser.add_argument("--suite", action="append", help=of)
    return parser.parse_args().suite or SUITES


def run_on_each(suites: Sequence[str], run_on: Callable[[str], int]) -> int:
    """Says on which of them it failed; the exit status of the whole."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    failed = [suite for suite in suites if run_on(suite) != 0]
    print(f"== failed: {', '.join(failed)}" if failed else "== passed")
    return 1 if failed else 0


def main() -> int:
    args = parse()
    need_what_it_takes(args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = None
    try:
        if args.root is None:
            folder = pathlib.Path(tempfile.mkdtemp(prefix="kiln-bare-"))
            folder.chmod(0o755)  # apt downloads as a user of its own
        machine = Machine(args.root or folder / "root", args.suite)
        machine.prepare()
        return machine.run(script(args))
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
