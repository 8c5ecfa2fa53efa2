#!/bin/bash
# Runs one golden test: run.sh KILN_OPT FILECHECK FILE
#
# Each "// RUN:" line of FILE is a shell command, run in order; all must succeed. In it, %s is FILE,
# %t a temporary file, kiln-opt and FileCheck are the programs given, and "not COMMAND" wants exit
# status 1 of COMMAND.
set -euo pipefail
if [ $# -ne 3 ]; then
  echo "usage: run.sh KILN_OPT FILECHECK FILE" >&2
  exit 2
fi
opt=$1 check=$2 file=$3
temporary=$(mktemp)
trap 'rm -f "$temporary"' EXIT

kiln_opt() { "$opt" "$@"; }
file_check() { "$check" "$@"; }
not() {
  status=0
  "$@" || status=$?
  if [ "$status" -ne 1 ]; then
    echo "run.sh: exit status 1 wanted, got $status: $*" >&2
    exit 99
  fi
}

commands=$(sed -n 's|^// RUN: *||p' "$file" |
  sed -e 's|kiln-opt|kiln_opt|g' -e 's|FileCheck|file_check|g' -e 's|%s|"$file"|g' -e 's|%t|"$temporary"|g')
if [ -z "$commands" ]; then
  echo "run.sh: $file has no RUN line" >&2
  exit 2
fi
eval "$commands"
