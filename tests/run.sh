#!/usr/bin/env bash
# Installs what the tests need, builds, and runs every test; what this machine lacks is skipped with a
# reason.
#   tests/run.sh [--preset release|dev|asan|tsan] [--no-install] [--no-python] [--stop-after configure|build]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=release
install=yes
python=yes
last=""
while [ $# -gt 0 ]; do
  case "$1" in
    --preset) preset="${2:?--preset needs a name}"; shift ;;
    --no-install) install=no ;;
    --no-python) python=no ;;
    --stop-after) last="${2:?--stop-after needs a stage: configure or build}"; shift ;;
    -h|--help) sed -n '2,4p' "$0" | cut -c3-; exit 0 ;;
    *) echo "error: unknown argument '$1' (try --help)" >&2; exit 2 ;;
  esac
  shift
done

case "$last" in
  ""|configure|build) ;;
  *) echo "error: unknown stage '$last': configure or build" >&2; exit 2 ;;
esac

step() { printf '\n== %s (%s s)\n' "$1" "$SECONDS"; }

if [ "$install" = yes ]; then
  step "packages"
  if [ "$python" = yes ]; then deploy/install-packages.sh; else deploy/install-packages.sh build test; fi
fi

step "rules of the tree"
python3 tests/tools/check_tree.py .

step "build, preset $preset"
# On, in so many words: deploy/quickstart.sh turns them off in a folder that it finds empty.
cmake --preset "$preset" -DKILN_BUILD_TESTS=ON >build-configure.log 2>&1 ||
  { cat build-configure.log; exit 1; }
rm -f build-configure.log
[ "$last" != configure ] || exit 0
cmake --build --preset "$preset"
[ "$last" != build ] || exit 0

failed=0
step "C++ tests"
ctest --preset "$preset" -j "$(nproc)" || failed=1

step "Python tests"
if [ "$python" = no ]; then
  echo "skipped: --no-python"
elif interpreter="$(deploy/python-env.sh "$PWD/build/venv" --test | tail -n 1)"; then
  # A process has a server of its own, and takes whole files: tests of one share what they compile.
  processes=$(($(nproc) < 4 ? $(nproc) : 4))
  PYTHONPATH="$PWD/build/$preset/python" KILN_BUILD="$PWD/build/$preset" \
    "$interpreter" -m pytest -q -n "$processes" --dist loadfile tests/python tests/conformance ||
    failed=1
else
  echo "skipped: no Python with torch and transformers can be had here (see above)"
fi

step "done"
exit "$failed"
