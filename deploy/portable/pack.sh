#!/usr/bin/env bash
# Packs a build of the preset `portable`: programs, client library and Python package, stripped, with the
# licences of what is linked in. Prints the pack's path and size; two packs of one build are equal.
#   deploy/portable/pack.sh BUILD_DIR
set -euo pipefail
[ $# -eq 1 ] || { sed -n 4p "$0" | cut -c3- >&2; exit 2; }
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$here/../.."
build="$(cd "$1" && pwd)"
libraries="$(sed -n 's/^KILN_PORTABLE_LIBRARIES:[A-Z]*=//p' "$build/CMakeCache.txt")"
version="$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")"
grep -qx 'KILN_PORTABLE:BOOL=ON' "$build/CMakeCache.txt" || {
  echo "error: $build is no build of the preset portable" >&2
  exit 1
}

name="kiln-$version-linux-x86_64"
pack="$build/$name"
rm -rf "$pack"
# program SOURCE TARGET
program() {
  install -D -m 755 "$1" "$2"
  llvm-strip-19 "$2"
}
kilnd="$build/optimized/kilnd"  # of optimize.sh
[ "$kilnd" -nt "$build/bin/kilnd" ] || kilnd="$build/bin/kilnd"
program "$kilnd" "$pack/bin/kilnd"
program "$build/bin/kiln" "$pack/bin/kiln"
program "$build/lib/libkiln.so" "$pack/lib/libkiln.so.0"
ln -s libkiln.so.0 "$pack/lib/libkiln.so"
program "$build/lib/libgcu_runtime.so" "$pack/lib/libgcu_runtime.so"
program "$build/python/kiln_torch/_kiln.abi3.so" "$pack/python/kiln_torch/_kiln.abi3.so"
install -m 644 -t "$pack/python/kiln_torch" "$root"/client/python/kiln_torch/*.py
install -D -m 644 -t "$pack/python/kiln_torch-$version.dist-info" \
  "$build/python/kiln_torch-$version.dist-info"/*
# Not client.h: its types are those of the Abseil and protobuf that are hidden inside.
install -D -m 644 -t "$pack/include/kiln" "$root/client/include/kiln/kiln.h"
install -D -m 644 -t "$pack" "$root/LICENSE" "$here/README"

install -d "$pack/licences"
while read -r package; do
  copyright="/usr/share/doc/$package/copyright"
  install -m 644 "$(readlink -f "$copyright")" "$pack/licences/$package"
done < "$here/linked-in.txt"
install -m 644 -t "$pack/licences" "$libraries"/licences/*

tar --create --directory "$build" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 "$name" |
  zstd -q -f -T0 -19 --long=27 -o "$build/$name.tar.zst"
echo "$build/$name.tar.zst: $(du -h --apparent-size "$build/$name.tar.zst" | cut -f1)," \
  "unpacked $(du -sh --apparent-size "$pack" | cut -f1), with ${kilnd#"$build/"}"
