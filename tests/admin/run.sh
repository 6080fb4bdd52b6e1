#!/usr/bin/env bash
# The admin of a running tidegate, read by other people's programs: its metrics by Prometheus's own
# parsers, and its API by schemathesis, which makes requests of its description and holds every answer
# against it. Under a minute.
#
# TIDEGATE is the binary to try; without it the debug build is made. Needs python3 with venv
# (tests/install.sh).
set -euo pipefail
cd "$(dirname "$0")"
source ../outside.sh

venv=$target/clients/admin
python_modules "$venv"
exec timeout -k 5 600 "$venv/bin/python" readers.py "$venv/bin/schemathesis"
