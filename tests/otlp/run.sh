#!/usr/bin/env bash
# Spans of a running tidegate, taken by a real collector of OpenTelemetry (rotel) over HTTP and gRPC,
# which hands them on to a reader that decodes them with the protocol's own messages. Some seconds.
#
# TIDEGATE is the binary to try; without it the debug build is made. Needs python3 with venv, and its
# shared library, which the collector is linked to (tests/install.sh).
set -euo pipefail
cd "$(dirname "$0")"
source ../outside.sh

# The collector comes for one version of Python, and needs only that version's library: it is a program.
venv=$target/clients/otlp
python_modules "$venv" --only-binary=:all: --implementation cp --python-version 3.11 \
  --target "$venv/packages"
chmod +x "$venv/packages/rotel/rotel-agent"

export PYTHONPATH=$venv/packages:$PYTHONPATH
exec timeout -k 5 600 "$venv/bin/python" spans.py "$venv/packages/rotel/rotel-agent"
