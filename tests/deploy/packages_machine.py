#!/usr/bin/env python3
"""The Debian packages as administrators have them: on a bare Debian 12, which their libraries are of, apt
installs them and what they need. kilnd runs by the configuration that came with it, as a user without
rights (systemd gives it one of its own), and compiles a graph; a C program builds with libkiln-dev;
purged, the packages leave nothing behind.

Needs root, mmdebstrap and a build of the preset release; exits with 77, saying why, where one is missing.
Downloads and takes some minutes: by hand, and no part of any test.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

from bare_machine import Machine, asked_suites, need_namespaces, run_on_each
from kilnd import BUILD, ROOT, skip

FOLDER = "/opt/packages"  # in the root
SUITE = "bookworm"
SCRIPT = """\
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
. /etc/os-release
apt-get -qq update >/dev/null
apt-get -qq install --no-install-recommends ./kilnd_*.deb ./libkiln_*.deb ./kiln-tools_*.deb >/dev/null
echo "== Debian $VERSION_ID: $(dpkg-query -W -f '${Package} ' kilnd libkiln kiln-tools)"
kilnd --config /etc/kiln/kilnd.conf --check-config >/dev/null
install -d -o 65534 -g 65534 data
setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all \\
  kilnd --config /etc/kiln/kilnd.conf --data-dir "$PWD/data" --listen=127.0.0.1:7561 \\
  --metrics-listen=none --socket=none --anonymous-role=compile >ready 2>log &
trap 'cat log' ERR
for _ in $(seq 600); do
  ! grep -q '^kilnd ready' ready || break
  kill -0 $!
  sleep 0.1
done
cat ready
kiln run bert-base.kgraph --inputs random:1 --check --server 127.0.0.1:7561
kill $!
wait $!
apt-get -qq install --no-install-recommends ./libkiln-dev_*.deb gcc libc6-dev pkg-config >/dev/null
gcc bert.c -o bert $(pkg-config --cflags --libs kiln) -lm
./bert bert-base.kgraph
kiln stop
dpkg -L kiln-tools | grep /man1/kiln.1
source "$(dpkg -L kiln-tools | grep bash-completion/completions/kiln)"
complete -p kiln
apt-get -qq purge kilnd libkiln kiln-tools libkiln-dev >/dev/null
! ls -d /etc/kiln /var/lib/kiln /usr/bin/kiln* 2>/dev/null
"""


def run_on(suite: str) -> int:
    """The exit status of SCRIPT."""
    with tempfile.TemporaryDirectory(prefix="kiln-packages-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)  # apt downloads as a user of its own
        made = folder / "made"
        subprocess.run(
            ["cpack", "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-B", made],
            check=True,
            capture_output=True,
        )
        machine = Machine(folder / "root", suite)
        machine.install()
        machine.settle()
        target = machine.inside(FOLDER)
        target.mkdir(parents=True)
        target.chmod(0o777)
        for file in (
            *made.glob("*.deb"),
            ROOT / "client/examples/bert.c",
            ROOT / "deploy/graphs/bert-base.kgraph",
        ):
            shutil.copy(file, target)
        return machine.run(SCRIPT, FOLDER)


def main() -> int:
    suites = [suite for suite in asked_suites(__doc__) if suite == SUITE]
    if not (BUILD / "CPackConfig.cmake").exists():
        skip("there is no build of the preset release")
    need_namespaces()
    return run_on_each(suites, run_on)


if __name__ == "__main__":
    sys.exit(main())
