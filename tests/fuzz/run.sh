#!/usr/bin/env bash
# Builds the fuzzers and runs each for a time:   tests/fuzz/run.sh [SECONDS] [NAME...]
# Without names all of them, 60 seconds each. What they learn stays in build/fuzz/corpus; an input
# that breaks something is kept in build/fuzz/findings, and the exit code is then 1. Put a mended
# finding into tests/fuzz/corpus/NAME, where every build replays it.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-60}
shift || true
[[ $seconds =~ ^[0-9]+$ ]] || { echo "usage: tests/fuzz/run.sh [SECONDS] [NAME...]" >&2; exit 2; }
build=${KILN_FUZZ_BUILD:-build/fuzz}

cmake --preset fuzz -B "$build" >/dev/null
if (($#)); then names=("$@"); else
  names=()
  for source in tests/fuzz/*_fuzzer.cc; do
    name=$(basename "$source" _fuzzer.cc)
    names+=("$name")
  done
fi
cmake --build "$build" --target "${names[@]/#/fuzz_}"

failed=0
for name in "${names[@]}"; do
  corpus=$build/corpus/$name
  findings=$build/findings/$name
  mkdir -p "$corpus" "$findings"
  options=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -use_value_profile=0
           -print_final_stats=1 -artifact_prefix="$findings/")
  [[ -f tests/fuzz/$name.dict ]] && options+=(-dict="tests/fuzz/$name.dict")
  echo "== $name"
  # The folder of what was learnt comes first: libFuzzer writes to it, and only reads the other.
  if ! "$build/fuzz/$name" "${options[@]}" "$corpus" "tests/fuzz/corpus/$name" \
      >"$build/$name.log" 2>&1; then
    failed=1
    grep -E "ERROR|SUMMARY|runtime error|property broken|Test unit written" "$build/$name.log" || true
    echo "see $build/$name.log"
  fi
  grep -E "^#[0-9]+.*(DONE|pulse|NEW|REDUCE|INITED)" "$build/$name.log" | tail -1 || true
  grep "stat::number_of_executed_units" "$build/$name.log" || true
done
exit $failed
