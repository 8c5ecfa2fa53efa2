#!/usr/bin/env bash
# Prints the Debian packages that hold the shared libraries of programs, for an image without what
# builds them.   deploy/runtime-packages.sh PROGRAM...
set -euo pipefail
[ $# -gt 0 ] || { echo "error: which programs?" >&2; exit 2; }

ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u | while read -r library; do
  real="$(readlink -f "$library")"
  # Packages made before /lib and /usr/lib became one know the file under its old name.
  dpkg -S "$real" 2>/dev/null || dpkg -S "${real#/usr}" 2>/dev/null || {
    echo "error: no package holds $library" >&2
    exit 1
  }
done | cut -d: -f1 | sort -u
