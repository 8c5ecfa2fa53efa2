#!/usr/bin/env bash
# Lays kilnd's code out by what compiling takes most often: a profile of the compiler's own functions, taken
# by kiln-compile-times with BOLT's counters in it, and BOLT. Writes BUILD_DIR/optimized/kilnd, which
# pack.sh then packs; the profile stays there for kilnd's next builds with the same LLVM.
#   deploy/portable/optimize.sh BUILD_DIR        minutes the first time, one later
set -euo pipefail
[ $# -eq 1 ] || { sed -n 5p "$0" | cut -c3- >&2; exit 2; }
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
build="$(cd "$1" && pwd)"
work="$build/optimized"
bolt=/usr/lib/llvm-19/bin/llvm-bolt  # it looks for its run-time library beside the path that it is called by
need_mb=19000  # of memory, for the profile

[ -x "$bolt" ] || { echo "error: $bolt is missing: deploy/install-packages.sh portable" >&2; exit 1; }
mkdir -p "$work"

# run LOG COMMAND...       silent unless it fails
run() {
  local log="$work/$1"
  shift
  "$@" >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    echo "error: $1 failed; all of it is in $log" >&2
    exit 1
  }
}

profile="$work/profile-$(dpkg-query -W -f '${Version}' llvm-19-dev).fdata"
if [ ! -e "$profile" ]; then
  free_mb="$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)"
  if [ "$free_mb" -lt "$need_mb" ]; then
    echo "optimize: kilnd stays as it is, a profile takes $need_mb MB of memory and $free_mb are free"
    exit 0
  fi
  echo "optimize: taking a profile"
  run instrument.log "$bolt" "$build/bin/kiln-compile-times" -instrument -o "$work/counting" \
    "--instrumentation-file=$work/part" --instrumentation-file-append-pid
  rm -f "$work"/part.*.fdata
  # What clients have: this generation of x86-64, the one with AVX-512, and GPUs from the oldest to the newest.
  graphs=("$root"/deploy/graphs/*.kgraph)
  for device in cpp:x86-64-v3 cpp:x86-64-v4 ptx:sm_80 ptx:sm_90a; do
    run "$device.log" "$work/counting" "--target=${device%:*}" "--arch=${device#*:}" "${graphs[@]}"
  done
  run merge.log merge-fdata-19 -o "$profile.new" "$work"/part.*.fdata
  mv "$profile.new" "$profile"
  rm -f "$work"/part.*.fdata "$work/counting"
fi
if [ ! "$work/kilnd" -nt "$build/bin/kilnd" ]; then
  echo "optimize: laying kilnd out"
  run bolt.log "$bolt" "$build/bin/kilnd" -o "$work/kilnd.new" "-data=$profile" \
    -reorder-blocks=ext-tsp -reorder-functions=cdsort -split-functions -split-all-cold -split-eh -icf=1
  mv "$work/kilnd.new" "$work/kilnd"
fi
