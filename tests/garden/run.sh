#!/usr/bin/env bash
# Every HTTP client before every origin that Debian, PyPI and npm ship, through tidegate. Writes
# docs/garden.md. Fails if a pair differs and known.toml has no row for it. About five minutes.
#
# TIDEGATE is the binary to try; without it the debug build is made. KEEP_LOGS names a folder for the
# logs of the servers. Needs root for apt, python3 with venv, and Node.js.
set -euo pipefail
cd "$(dirname "$0")"
source ../outside.sh

need=()
for pair in nginx:nginx-light apache2:apache2-bin lighttpd:lighttpd haproxy:haproxy \
  varnishd:varnish squid:squid-openssl traffic_server:trafficserver caddy:caddy h2o:h2o \
  curl:curl wget:wget; do
  PATH=$PATH:/usr/sbin command -v "${pair%%:*}" >/dev/null || need+=("${pair##*:}")
done
if [ ${#need[@]} -gt 0 ]; then
  echo "installing: ${need[*]}" >&2
  again packages apt-get install -qq -y --no-install-recommends "${need[@]}" >/dev/null
fi
export PATH=$PATH:/usr/sbin

venv=$target/clients/garden
python_modules "$venv" --only-binary=:all:
export GARDEN_NODE=$target/clients/garden-node
node_modules "$GARDEN_NODE"
cp client.mjs apps/node.mjs "$GARDEN_NODE/"
exec timeout -k 5 2400 "$venv/bin/python" garden.py "$root/docs/garden.md"
