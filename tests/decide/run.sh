#!/usr/bin/env bash
# The recipes of docs/howto/decide.md, served by the proxies themselves: nginx, Caddy, Traefik, HAProxy
# and Envoy ask one tidegate, and share one budget. Then the rate limit service, asked through stubs of
# gRPC. Under a minute.
#
# TIDEGATE is the binary to try; without it the debug build is made. Needs python3 with venv, nginx and
# haproxy (tests/install.sh).
set -euo pipefail
cd "$(dirname "$0")"
source ../outside.sh

venv=$target/clients/decide
python_modules "$venv" --only-binary=:all:
export PATH=$PATH:/usr/sbin
timeout -k 5 300 "$venv/bin/python" proxies.py "$venv/bin"
timeout -k 5 300 "$venv/bin/python" envoys.py "$venv/bin"
# The handshakes that a test expects to fail are no news.
GRPC_VERBOSITY=NONE timeout -k 5 120 "$venv/bin/python" service.py
