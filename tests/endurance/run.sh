#!/usr/bin/env bash
# run.sh [SECONDS]: everything at once, for an hour without the argument: reloads, upgrades, failovers of Redis, clients
# that misbehave. Prints a report of one page, and writes it to REPORT if that is set. Exits with 1
# if memory or descriptors grow, a request has no answer, or a window is overfull.
#
# TIDEGATE is the binary to try; without it the debug build is made. KEEP_LOGS names a folder for the
# logs. Needs python3 with venv, openssl and redis-server (tests/install.sh).
set -euo pipefail
cd "$(dirname "$0")"
source ../outside.sh

venv=$target/clients/endurance
python_modules "$venv" --only-binary=:all:
exec "$venv/bin/python" endurance.py "${1:-3600}" ${REPORT:+"$REPORT"}
