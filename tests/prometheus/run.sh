#!/usr/bin/env bash
# A real Prometheus scrapes a running tidegate: the rules and the Grafana dashboard of deploy/ ask
# only what there is, and calls of gRPC that fail and an outage of Redis fire their alerts.
#
# TIDEGATE is the binary to try; without it the debug build is made. Needs python3, curl, prometheus
# with promtool, and redis-server (tests/install.sh).
set -euo pipefail
cd "$(dirname "$0")"
source ../outside.sh

promtool check config "$root/deploy/prometheus/prometheus.yml"
promtool test rules "$root/deploy/prometheus/tidegate.rules.test.yml"
exec timeout -k 5 600 python3 queries.py "$root/deploy"
