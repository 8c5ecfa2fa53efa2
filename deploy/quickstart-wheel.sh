#!/usr/bin/env bash
# From a fresh Debian 12 machine to a model that compiles with the wheel: builds it, installs it into a new
# virtual environment beside torch, and runs BERT-base with a server that starts by itself.
#   deploy/quickstart-wheel.sh [--no-torch] [--no-install] [--stop-after build]
# KILN_PYTHON names a Python that has torch and transformers already; --no-install leaves Debian's packages alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

torch=yes
install=()
last=""
while [ $# -gt 0 ]; do
  case "$1" in
    --no-torch) torch=no ;;
    --no-install) install=(--no-install) ;;
    --stop-after) last="${2:?--stop-after needs a stage: build}"; shift ;;
    -h|--help) sed -n '2,5p' "$0" | cut -c3-; exit 0 ;;
    *) echo "error: unknown argument '$1' (try --help)" >&2; exit 2 ;;
  esac
  shift
done

step() { printf '\n== %s\n' "$1"; }
fail() { echo "error: $1" >&2; exit 1; }

case "$last" in ""|build) ;; *) fail "unknown stage '$last': build" ;; esac
free_mb="$(df --output=avail -m . | tail -n 1 | tr -d ' ')"
[ "$free_mb" -ge 5500 ] || fail "only $free_mb MB are free here; the build needs 5500 MB"

step "1 of 4: packages and the wheel (some minutes the first time)"
if [ "$torch" = yes ] && [ ${#install[@]} -eq 0 ]; then deploy/install-packages.sh python; fi
deploy/wheel.sh "${install[@]}"
wheels=(build/portable/kiln_torch-*.whl)
[ -f "${wheels[-1]}" ] || fail "deploy/wheel.sh left no wheel in build/portable"
[ "$last" != build ] || exit 0

step "2 of 4: a new virtual environment"
# What a user's shell may have of other ways to use Kiln must not stand in for the wheel.
unset KILN_SERVER KILN_AUTOSTART PYTHONPATH
venv="$PWD/build/wheel-venv"
base=python3
if [ "$torch" = yes ] && ! base="$(deploy/python-env.sh "$PWD/build/venv" | tail -n 1)"; then
  echo "torch is left out: no Python with torch and transformers can be had here (see above)"
  torch=no base=python3
fi
rm -rf "$venv"
"$base" -m venv "$venv"
if [ "$torch" = yes ]; then
  # torch is found where it is: it is no requirement of the wheel, and takes a minute to install again.
  there="$("$base" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])')"
  here="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  echo "$there" >"$here/torch-of-another-environment.pth"
fi
"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-index --no-deps "${wheels[-1]}"
found="$("$venv/bin/python" -c 'import importlib.util as u; print(u.find_spec("kiln_torch").origin)')"
case "$found" in "$venv"/*) ;; *) fail "kiln_torch comes from $found, not from the wheel" ;; esac
"$venv/bin/kiln" start

step "3 of 4: BERT-base without torch"
graph=deploy/graphs/bert-base.kgraph
"$venv/bin/kiln" run "$graph" --inputs random:1 --check --bench 10
echo "again, now from the cache:"
"$venv/bin/kiln" run "$graph" --inputs random:1

step "4 of 4: BERT-base from transformers under torch.compile(backend=\"kiln\")"
if [ "$torch" = yes ]; then
  "$venv/bin/python" deploy/quickstart_torch.py
  echo "and in a second process, which compiles nothing:"
  "$venv/bin/python" deploy/quickstart_torch.py --second
else
  echo "left out"
fi

cat <<END

The server ends by itself when nobody has called for ten minutes, and starts with the next call. Next:
  $venv/bin/kiln doctor           what works here
  $venv/bin/kiln explain $graph   what became which kernel, and why
  pip install ${wheels[-1]}       into the environment that has your torch
END
