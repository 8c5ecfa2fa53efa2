#!/usr/bin/env python3
"""The installed unit under a live systemd: a container that sees this machine's files, and has its own
network, writes nothing here, and starts no service but kilnd."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from kilnd import BUILD, ROOT, eventually, make_graph, need, skip

NSPAWN = need("systemd-nspawn")
SYSTEMD = pathlib.Path("/usr/lib/systemd/systemd")
SERVER = "127.0.0.1:7461"  # as deploy/kilnd.conf has it
# systemd-nspawn keeps these from containers; the unit lets them through, workers use them.
ALLOWED = "landlock_create_ruleset landlock_add_rule landlock_restrict_self seccomp"


def run(*command: str, check: bool = True, **more) -> subprocess.CompletedProcess:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **more)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done


def init_under(pid: int) -> int:
    """The process that is the container's first; 0 while there is none."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in map(int, children):
        try:
            if pathlib.Path(f"/proc/{child}/exe").readlink() == SYSTEMD:
                return child
        except OSError:
            pass
    return 0


class Container:
    """This machine's root under an overlay, booted with kilnd installed; runs until stop."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            skip("only root starts containers")
        if not SYSTEMD.exists():
            skip("systemd is not installed")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kiln-systemd-"))
        self.root = self.folder / "root"
        self.process = None
        self.init = 0
        self.mounted = False
        try:
            self.mount()
            self.install()
            self.boot()
        except BaseException:
            self.stop()
            raise

    def mount(self) -> None:
        for name in ("root", "upper", "work"):
            (self.folder / name).mkdir()
        options = f"lowerdir=/,upperdir={self.folder}/upper,workdir={self.folder}/work"
        done = run("mount", "-t", "overlay", "overlay", "-o", options, self.root, check=False)
        if done.returncode != 0:
            skip(f"no overlay over / can be mounted: {done.stderr.strip()}")
        self.mounted = True

    def install(self) -> None:
        # None of this machine's own services.
        settings = self.root / "etc/systemd/system"
        shutil.rmtree(settings, ignore_errors=True)
        settings.mkdir(parents=True)
        (self.root / "etc/machine-id").write_text(f"{0xB0:032x}\n")
        environment = {**os.environ, "DESTDIR": str(self.root)}
        run("cmake", "--install", str(BUILD), "--prefix", "/usr", env=environment)

    def boot(self) -> None:
        command = [NSPAWN, "--boot", "--register=no", "--keep-unit", "--private-network", "--quiet"]
        command += ["--console=read-only", f"--system-call-filter={ALLOWED}"]
        with (self.folder / "console").open("w") as console:
            self.process = subprocess.Popen(
                [*command, f"--directory={self.root}", "--machine=kiln-unit-test"],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        if not eventually(lambda: self.process.poll() is not None or self.booted(), 60):
            skip(f"systemd does not boot here: {self.console()[-500:]}")
        if self.process.poll() is not None:
            skip(f"systemd-nspawn cannot run here: {self.console()[-500:]}")

    def console(self) -> str:
        return (self.folder / "console").read_text(errors="replace")

    def booted(self) -> bool:
        self.init = init_under(self.process.pid)
        if self.init == 0:
            return False
        state = self.inside("systemctl", "is-system-running", check=False).stdout.strip()
        return state in ("running", "degraded")

    def inside(self, *command: str, **more) -> subprocess.CompletedProcess:
        return run("nsenter", f"--target={self.init}", "-m", "-p", "-u", "-i", "-n", *command, **more)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            if self.init != 0:
                self.inside("systemctl", "poweroff", check=False)
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.terminate()  # it ends what is inside
                self.process.wait()
        if self.mounted:
            run("umount", str(self.root))
        shutil.rmtree(self.folder, ignore_errors=True)


class UnitTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.container = Container()
        cls.addClassCleanup(cls.container.stop)
        folder = cls.container.root / "srv"
        cls.graph = "/srv/" + pathlib.Path(make_graph(folder, "unit")).name
        cls.config = cls.container.root / "etc/kiln/kilnd.conf"

    def setUp(self) -> None:
        self.systemctl("reset-failed", check=False)
        self.systemctl("start", "kilnd")

    def tearDown(self) -> None:
        self.systemctl("stop", "kilnd", check=False)

    def systemctl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
        return self.container.inside("systemctl", *arguments, check=check)

    def state(self, name: str) -> str:
        return self.systemctl("show", "kilnd", f"--property={name}", "--value").stdout.strip()

    def logs(self, text: str) -> bool:
        """Whether the run that is on, or was the last, says so soon: the journal takes its time."""
        return eventually(lambda: any(text in line for line in self.log()))

    def log(self) -> list[str]:
        arguments = ("journalctl", "--unit=kilnd", "--output=cat", "--no-pager")
        identity = f"_SYSTEMD_INVOCATION_ID={self.state('InvocationID')}"
        return self.container.inside(*arguments, identity).stdout.splitlines()

    def compile(self) -> str:
        return self.container.inside("kiln", "compile", self.graph, "--server", SERVER).stdout

    def test_it_serves_isolated_and_keeps_its_cache(self) -> None:
        self.assertTrue(self.logs('"message":"compile workers are isolated"}'))
        self.assertRegex(self.compile(), "compiled in|disk in")
        self.assertIn("memory in", self.compile())
        self.systemctl("restart", "kilnd")
        self.assertIn("disk in", self.compile())
        # By number: a machine without systemd's name service has no name for it.
        owner = self.container.inside("stat", "--format=%u", "/var/lib/private/kiln").stdout.strip()
        self.assertEqual(owner, self.state("UID"), "the user that systemd makes for it")
        self.assertNotEqual(owner, "0")

    def test_a_reload_keeps_the_process(self) -> None:
        before = self.state("MainPID")
        self.systemctl("reload", "kilnd")
        self.assertTrue(self.logs("credentials are up to date"))
        self.assertEqual(self.state("MainPID"), before)

    def test_a_stop_drains_and_is_no_failure(self) -> None:
        self.compile()
        self.systemctl("stop", "kilnd")
        self.assertEqual(self.state("Result"), "success")
        self.assertEqual(self.state("ExecMainStatus"), "0")

    def test_a_killed_server_is_back_soon(self) -> None:
        self.compile()
        self.systemctl("kill", "--signal=KILL", "--kill-who=main", "kilnd")
        self.assertTrue(eventually(lambda: self.state("NRestarts") == "1"))
        self.assertTrue(eventually(lambda: self.state("ActiveState") == "active"))
        self.assertIn("disk in", self.compile())

    def test_a_bad_configuration_is_named_and_not_tried_again(self) -> None:
        self.systemctl("stop", "kilnd")
        good = self.config.read_text()
        self.addCleanup(self.config.write_text, good)
        self.config.write_text(good + "workers = many\n")
        self.assertNotEqual(self.systemctl("start", "kilnd", check=False).returncode, 0)
        self.assertEqual(self.state("ActiveState"), "failed")
        self.assertEqual(self.state("ExecMainStatus"), "78")
        self.assertTrue(self.logs("'many' is not a whole number"))


if __name__ == "__main__":
    sys.exit(unittest.main())
