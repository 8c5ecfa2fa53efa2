#!/usr/bin/env python3
"""Runs the pack of the preset `portable` on bare Debian 12 and 13: in new roots that have what every
Debian has, without one package more. kilnd starts with isolated workers and compiles a saved graph,
over TLS; the graph runs, with what the interpreter says it has to be; the second time a cache has it.

Needs root, mmdebstrap and openssl; exits with 77, saying why, where that, the network or the pack is
missing. Downloads and takes a minute or two: by hand, and no part of any test.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

from bare_machine import Machine, asked_suites, need_namespaces, run_on_each
from kilnd import ROOT, skip

sys.path.insert(0, str(ROOT / "tests"))
import portable_pack

GRAPH = ROOT / "deploy/graphs/bert-base.kgraph"
FOLDER = "/opt/kiln"  # in the root: the pack, and beside its programs what they are given
SCRIPT = f"""\
set -euo pipefail
. /etc/os-release
echo "== Debian $VERSION_ID, $(dpkg-query -W -f '${{Version}}' libc6), $(dpkg-query -W | wc -l) packages"
! ldd bin/kilnd bin/kiln lib/libkiln.so | grep 'not found'
bin/kilnd --listen=127.0.0.1:0 --metrics-listen=127.0.0.1:0 --data-dir=/var/lib/kiln \\
  --sandbox=require --tls-cert=cert.pem --tls-key=key.pem --anonymous-role=compile >ready 2>log &
trap 'cat log' ERR
for _ in $(seq 600); do
  ! grep -q '^kilnd ready' ready || break
  kill -0 $!
  sleep 0.1
done
cat ready
port="$(sed -E 's/.*grpc [^ ]*:([0-9]+),.*/\\1/' ready)"
export KILN_SERVER="https://localhost:$port" KILN_TLS_CA="$PWD/cert.pem"
bin/kiln run bert-base.kgraph --inputs random:1 --check | tee first
grep -q '^program *compiled' first
bin/kiln run bert-base.kgraph --inputs random:1 --fail-on-miss | tee second
bin/kiln status
grep 'workers are isolated' log
kill $!
wait $!
"""


def make_certificate(folder: pathlib.Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        + ["-subj", "/CN=kilnd", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
        + ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")],
        check=True,
        capture_output=True,
    )


def run_on(suite: str) -> int:
    """The exit status of SCRIPT."""
    with tempfile.TemporaryDirectory(prefix="kiln-bare-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)  # apt downloads as a user of its own
        machine = Machine(folder / "root", suite, fetches=False)
        machine.install()
        machine.settle()
        target = machine.inside(FOLDER)
        (folder / "pack").mkdir()
        shutil.move(portable_pack.unpack(folder / "pack"), target)
        shutil.copy(GRAPH, target)
        make_certificate(target)
        return machine.run(SCRIPT, FOLDER)


def main() -> int:
    suites = asked_suites(__doc__)
    try:
        print(f"== pack {portable_pack.find()}", flush=True)
    except portable_pack.Absent as reason:
        skip(str(reason))
    need_namespaces("openssl")
    return run_on_each(suites, run_on)


if __name__ == "__main__":
    sys.exit(main())
