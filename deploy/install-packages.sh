#!/usr/bin/env bash
# Installs the Debian packages of deploy/packages.txt that are not there yet.
#   deploy/install-packages.sh [build] [test] [python] [portable]     default: build test python
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=(build test python)

missing=()
while read -r package purposes; do
  [[ -z "$package" || "$package" == \#* ]] && continue
  asked=no
  for purpose in "${wanted[@]}"; do [[ " $purposes " != *" $purpose "* ]] || asked=yes; done
  [ "$asked" = yes ] || continue
  state="$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)"
  [ "$state" = installed ] || missing+=("$package")
done < "$here/packages.txt"

if [ ${#missing[@]} -eq 0 ]; then
  echo "packages: all there"
  exit 0
fi

command -v apt-get >/dev/null || {
  echo "error: this machine has no apt-get; Kiln is set up on Debian 12. Missing: ${missing[*]}" >&2
  exit 1
}
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || {
    echo "error: installing packages needs root; as root run: apt-get install ${missing[*]}" >&2
    exit 1
  }
  sudo=(sudo)
fi

log="$(mktemp)"
policy=""
trap 'rm -f "$log"; [ -z "$policy" ] || "${sudo[@]}" rm -f "$policy"' EXIT
if [ ! -e /usr/sbin/policy-rc.d ]; then
  # Some packages bring daemons (redis-server, prometheus): tests want the programs, nobody the services.
  policy=/usr/sbin/policy-rc.d
  printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$policy" >/dev/null
  "${sudo[@]}" chmod 755 "$policy"
fi
echo "packages: installing ${#missing[@]}: ${missing[*]}"
if ! "${sudo[@]}" apt-get update -q >"$log" 2>&1; then
  tail -n 5 "$log" >&2
  echo "error: the package lists cannot be read: is there a network?" >&2
  exit 1
fi
if ! "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
  tail -n 15 "$log" >&2
  echo "error: installing packages failed; the lines above say why" >&2
  exit 1
fi
echo "packages: installed"
