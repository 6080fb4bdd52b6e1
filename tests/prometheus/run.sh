#!/usr/bin/env bash
# A real Prometheus scrapes a running tidegate: the rules and the Grafana dashboard of deploy/ ask
# only what there is, and an outage of Redis fires its alert.
#
# TIDEGATE is the binary to try; without it the debug build is made. Needs python3, prometheus with
# promtool, and redis-server (tests/install.sh).
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)

if [ -z "${TIDEGATE:-}" ]; then
  target=${CARGO_TARGET_DIR:-target}
  case $target in /*) ;; *) target=$root/$target ;; esac
  (cd "$root" && cargo build --locked)
  TIDEGATE=$target/debug/tidegate
fi
export TIDEGATE

promtool check config "$root/deploy/prometheus/prometheus.yml"
promtool test rules "$root/deploy/prometheus/tidegate.rules.test.yml"

# Loopback only: a proxy of the machine must not stand between.
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
export PYTHONDONTWRITEBYTECODE=1
exec timeout -k 5 150 python3 queries.py "$root/deploy"
