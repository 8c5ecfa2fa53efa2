#!/usr/bin/env bash
# From a fresh Debian 12 machine to a model that compiles through kilnd: installs packages, builds,
# starts kilnd, runs a BERT-base graph without torch, then BERT-base under torch.compile.
#   deploy/quickstart.sh [--no-torch] [--port PORT] [--stop-after configure|build]
#   deploy/quickstart.sh --wheel [--no-torch] [--stop-after build]      builds the wheel, and uses it as its
#                                                                       users do: see deploy/quickstart-wheel.sh
# KILN_PYTHON names a Python that has torch and transformers already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${1:-}" = --wheel ]; then exec deploy/quickstart-wheel.sh "${@:2}"; fi

torch=yes
python=""
port=7461
last=""
while [ $# -gt 0 ]; do
  case "$1" in
    --no-torch) torch=no ;;
    --port) port="${2:?--port needs a number}"; shift ;;
    --stop-after) last="${2:?--stop-after needs a stage: configure or build}"; shift ;;
    -h|--help) sed -n '2,7p' "$0" | cut -c3-; exit 0 ;;
    --wheel) echo "error: --wheel is the first argument" >&2; exit 2 ;;
    *) echo "error: unknown argument '$1' (try --help)" >&2; exit 2 ;;
  esac
  shift
done

step() { printf '\n== %s\n' "$1"; }
fail() { echo "error: $1" >&2; exit 1; }

case "$last" in ""|configure|build) ;; *) fail "unknown stage '$last': configure or build" ;; esac

free_mb="$(df --output=avail -m . | tail -n 1 | tr -d ' ')"
[ "$free_mb" -ge 2000 ] || fail "only $free_mb MB are free here; the build needs 2000 MB"

step "1 of 5: packages"
if [ "$torch" = yes ]; then deploy/install-packages.sh build python; else deploy/install-packages.sh build; fi
command -v clang++-19 >/dev/null || fail "clang++-19 is not on PATH, though package clang-19 is there"

step "2 of 5: build (some minutes the first time)"
mkdir -p build
# Only what is built here is configured: tests/ needs packages of its own. In a folder that has the tests,
# from tests/run.sh, they stay, so that ctest goes on finding them.
tests=OFF
! grep -qs '^build tests/' build/release/build.ninja || tests=ON
cmake --preset release "-DKILN_BUILD_TESTS=$tests" >build/configure.log 2>&1 ||
  { tail -n 20 build/configure.log >&2; fail "cmake failed"; }
[ "$last" != configure ] || exit 0
targets=(kilnd kiln_cli kiln-opt gcu_runtime)
[ "$torch" = no ] || targets+=(kiln_python_package)
cmake --build --preset release --target "${targets[@]}"
[ "$last" != build ] || exit 0
bin=build/release/bin

step "3 of 5: the server"
address="127.0.0.1:$port"
export KILN_SERVER="$address"
log=build/quickstart-kilnd.log
if $bin/kiln status >/dev/null 2>&1; then
  echo "a Kiln server answers at $address already: using it"
else
  $bin/kilnd --listen "$address" --metrics-listen "127.0.0.1:$((port + 1))" >"$log" 2>&1 &
  pid=$!
  for _ in $(seq 1 300); do
    grep -qs '^kilnd ready' "$log" && break
    kill -0 "$pid" 2>/dev/null || { tail -n 3 "$log" >&2; fail "kilnd did not start; see $log"; }
    sleep 0.1
  done
  grep '^kilnd ready' "$log" || fail "kilnd did not get ready in 30 s; see $log"
  echo "$pid" >build/quickstart-kilnd.pid
fi

step "4 of 5: BERT-base without torch"
graph=deploy/graphs/bert-base.kgraph
$bin/kiln run "$graph" --inputs random:1 --check --bench 10
echo "again, now from the cache:"
$bin/kiln run "$graph" --inputs random:1

step "5 of 5: BERT-base from transformers under torch.compile(backend=\"kiln\")"
if [ "$torch" = no ]; then
  echo "left out: --no-torch"
elif python="$(deploy/python-env.sh "$PWD/build/venv" | tail -n 1)"; then
  export PYTHONPATH="$PWD/build/release/python"
  "$python" deploy/quickstart_torch.py
  echo "and in a second process, which compiles nothing:"
  "$python" deploy/quickstart_torch.py --second
else
  python=""
  echo "left out: no Python with torch and transformers can be had here (see above)"
fi

printf '\nKiln runs at %s (its log: %s). Next:\n  export KILN_SERVER=%s' "$address" "$log" "$address"
if [ -n "${python:-}" ]; then
  cat <<END
 PYTHONPATH=$PWD/build/release/python
  $python -c 'import torch; print(torch.compile(lambda x: x.relu() + 1, backend="kiln")(torch.randn(3)))'
END
else
  echo
fi
cat <<END
  $bin/kiln explain $graph       what became which kernel, and why
  $bin/kiln status               the server's caches and queue
  curl -s http://127.0.0.1:$((port + 1))/metrics | grep kiln_
END
[ ! -f build/quickstart-kilnd.pid ] || echo "  kill $(cat build/quickstart-kilnd.pid)                      stops the server"
