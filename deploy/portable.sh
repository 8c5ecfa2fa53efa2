#!/usr/bin/env bash
# Builds Kiln for any x86-64 Linux with glibc 2.36 or later, everything else linked in, and packs it:
# build/portable/kiln-VERSION-linux-x86_64.tar.zst. On Debian 12, whose glibc that is.
#   deploy/portable.sh [--no-install]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

install=yes
case "${1:-}" in
  "") ;;
  --no-install) install=no ;;
  -h|--help) sed -n '2,4p' "$0" | cut -c3-; exit 0 ;;
  *) echo "error: unknown argument '$1' (try --help)" >&2; exit 2 ;;
esac

[ "$install" = no ] || deploy/install-packages.sh build portable
deploy/portable/static-libraries.sh build/portable-libraries
cmake --preset portable
cmake --build --preset portable --target kilnd kiln_cli kiln_python_package gcu_runtime kiln-compile-times
deploy/portable/optimize.sh build/portable
deploy/portable/pack.sh build/portable
