#!/usr/bin/env bash
# Builds what pip installs: kiln_torch with client, extension, command line and kilnd in it, everything
# but glibc linked in, for Python 3.10 or later on x86-64 Linux with glibc 2.36 or later. On Debian 12.
#   deploy/wheel.sh [--no-install]     prints the wheel's path, build/portable/kiln_torch-*.whl
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
  ""|--no-install) ;;
  -h|--help) sed -n '2,4p' "$0" | cut -c3-; exit 0 ;;
  *) echo "error: unknown argument '$1' (try --help)" >&2; exit 2 ;;
esac
deploy/portable.sh "$@" >&2
python3 deploy/portable/wheel.py build/portable
