#!/usr/bin/env bash
# Prints the Debian packages that hold the shared libraries of programs, for an image without what
# builds them.   deploy/runtime-packages.sh PROGRAM...
set -euo pipefail
[ $# -gt 0 ] || { echo "error: which programs?" >&2; exit 2; }

mapfile -t libraries < <(ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u | xargs readlink -f)
[ ${#libraries[@]} -gt 0 ] || { echo "error: no libraries found: $*" >&2; exit 1; }

# Packages made before /lib and /usr/lib became one know a file under its old name.
owners="$(dpkg -S "${libraries[@]}" "${libraries[@]#/usr}" 2>/dev/null || true)"
files="$(sed 's/^.*: //' <<<"$owners")"
for library in "${libraries[@]}"; do
  grep -qxF -e "$library" -e "${library#/usr}" <<<"$files" || {
    echo "error: no package holds $library" >&2
    exit 1
  }
done
cut -d: -f1 <<<"$owners" | sort -u
