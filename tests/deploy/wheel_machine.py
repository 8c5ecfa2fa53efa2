#!/usr/bin/env python3
"""The wheel as users have it: on bare Debian 12 and 13, with Python 3.11 and 3.13 and no compiler, pip
installs it and nothing else of Kiln's. The command line compiles and runs a graph with a server that
starts by itself. Where pip can get torch there, as on Debian 12, torch.compile does, with nothing
imported, set or started before (wheel_check.py); elsewhere the extension is loaded alone.

Needs root, mmdebstrap and the wheel (deploy/wheel.sh); exits with 77, saying why, where one is missing.
Downloads and takes some minutes: by hand, and no part of any test.
"""

import pathlib
import shutil
import sys
import tempfile

from bare_machine import Machine, asked_suites, need_namespaces, run_on_each
from kilnd import ROOT, skip

FOLDER = "/opt/kiln"  # in the root
SCRIPT = """\
set -euo pipefail
. /etc/os-release
apt-get -qq update >/dev/null
apt-get -qq install --no-install-recommends python3 python3-venv >/dev/null
! command -v cc c++ gcc clang
python3 -m venv env
env/bin/pip install -q --disable-pip-version-check --no-index kiln_torch-*.whl
echo "== Debian $VERSION_ID, $(env/bin/python --version), $(env/bin/pip list 2>/dev/null | grep -c .) rows of pip"
env/bin/kiln run bert-base.kgraph --inputs random:1 --check
env/bin/kiln doctor
env/bin/kiln stop
index=()
[ -z "${KILN_TORCH_INDEX:-}" ] || index=(--extra-index-url "$KILN_TORCH_INDEX")
if env/bin/pip install -q --disable-pip-version-check "${index[@]}" 'torch==2.13.0+cpu' numpy 2>pip.log; then
  env/bin/python wheel_check.py
  env/bin/python train.py
  env/bin/kiln stop
else
  tail -n 1 pip.log
  env/bin/python - <<'END'
import importlib.util
import pathlib
import sys

folder = pathlib.Path(importlib.util.find_spec("kiln_torch").origin).parent
spec = importlib.util.spec_from_file_location("_kiln", folder / "_kiln.abi3.so")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print("the extension loads in Python", sys.version.split()[0], "-", len(dir(module)), "names; torch is not to be had here")
END
fi
"""


def run_on(suite: str, wheel: pathlib.Path) -> int:
    """The exit status of SCRIPT."""
    with tempfile.TemporaryDirectory(prefix="kiln-wheel-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)  # apt downloads as a user of its own
        machine = Machine(folder / "root", suite)
        machine.install()
        machine.settle()
        target = machine.inside(FOLDER)
        target.mkdir(parents=True)
        here = pathlib.Path(__file__).resolve().parent
        for file in (
            wheel,
            here / "wheel_check.py",
            ROOT / "client/examples/train.py",
            ROOT / "deploy/graphs/bert-base.kgraph",
        ):
            shutil.copy(file, target)
        return machine.run(SCRIPT, FOLDER)


def main() -> int:
    suites = asked_suites(__doc__)
    wheels = sorted((ROOT / "build/portable").glob("kiln_torch-*.whl"))
    if not wheels:
        skip("there is no wheel: deploy/wheel.sh makes one")
    need_namespaces()
    return run_on_each(suites, lambda suite: run_on(suite, wheels[-1]))


if __name__ == "__main__":
    sys.exit(main())
