#!/usr/bin/env bash
# Finds or makes a Python with torch and transformers and prints its path on the last line.
#   deploy/python-env.sh VENV_DIR [--test]      --test adds what the Python tests need
# Where torch is to come from an index of your own (the CPU build is much smaller than the default),
# name it in KILN_TORCH_INDEX. Order: $KILN_PYTHON, python3 where it has both already, else a virtual environment in VENV_DIR.
set -euo pipefail

venv="${1:?usage: deploy/python-env.sh VENV_DIR [--test]}"
modules=(torch transformers)
packages=(torch==2.13.0 transformers numpy)
if [ "${2:-}" = --test ]; then
  modules+=(pytest xdist expecttest)
  packages+=(pytest pytest-xdist expecttest grpcio-health-checking grpcio-reflection)
fi

for python in "${KILN_PYTHON:-}" "$venv/bin/python" python3; do
  [ -n "$python" ] || continue
  # Looked for, not imported: that takes seconds.
  if "$python" -c 'import sys, importlib.util as u; sys.exit(None in map(u.find_spec, sys.argv[1:]))' \
      "${modules[@]}" >/dev/null 2>&1; then
    command -v "$python"
    exit 0
  fi
done

echo "python: making a virtual environment with ${packages[*]} (a minute or two)" >&2
if ! python3 -m venv "$venv" >&2; then
  echo "error: python3 cannot make a virtual environment (package python3-venv)" >&2
  exit 1
fi
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
index=()
[ -z "${KILN_TORCH_INDEX:-}" ] || index=(--extra-index-url "$KILN_TORCH_INDEX")
if ! "$venv/bin/python" -m pip install -q --disable-pip-version-check "${index[@]}" \
    "${packages[@]}" >"$log" 2>&1; then
  tail -n 5 "$log" >&2
  echo "error: torch or transformers cannot be installed; set KILN_PYTHON to a Python that has them" >&2
  exit 1
fi
echo "$venv/bin/python"
