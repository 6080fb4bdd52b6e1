#!/usr/bin/env bash
# A file of Traefik, served by Traefik and by what `tidegate import` makes of it: the same requests must
# have the same answers, and reach the upstream alike. Some seconds.
#
# TIDEGATE is the binary to try; without it the debug build is made. Needs python3 with venv
# (tests/install.sh).
set -euo pipefail
cd "$(dirname "$0")"
source ../outside.sh

venv=$target/clients/traefik
python_modules "$venv" --only-binary=:all:
exec timeout -k 5 600 "$venv/bin/python" beside.py "$venv/bin/traefik"
