#!/usr/bin/env bash
# Real HTTP and WebSocket clients, unmodified, against a running tidegate: what they read of their
# limits, whether waiting as told is enough, and whether everything else goes through untouched.
#
# TIDEGATE is the binary to try; without it the debug build is made. The clients are installed once,
# pinned, under target/clients. Needs python3 with venv, node with npm, and curl (tests/install.sh).
# Arguments choose some of the Python tests: `run.sh test_curl.Limits`.
set -euo pipefail
cd "$(dirname "$0")"
source ../outside.sh

clients=$target/clients
export CLIENT_MODULES=$clients/node
python_modules "$clients/venv"
node_modules "$CLIENT_MODULES"

# Both halves mostly wait, so they run together. timeout ends the whole process group, the proxies
# and upstreams of a test that hangs included.
python=(timeout -k 5 600 "$clients/venv/bin/python" python/run.py)
node=(timeout -k 5 600 node node/run.mjs)
if [ $# -gt 0 ]; then
  exec "${python[@]}" "$@"
fi
failed=0
"${node[@]}" >"$clients/node.log" 2>&1 &
background=$!
"${python[@]}" || failed=1
wait "$background" || failed=1
cat "$clients/node.log"
exit $failed
