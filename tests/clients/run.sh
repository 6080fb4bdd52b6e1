#!/usr/bin/env bash
# Real HTTP and WebSocket clients, unmodified, against a running tidegate: what they read of their
# limits, whether waiting as told is enough, and whether everything else goes through untouched.
#
# TIDEGATE is the binary to try; without it the debug build is made. The clients are installed once,
# pinned, under target/clients. Needs python3 with venv, node with npm, and curl (tests/install.sh).
# Arguments choose some of the Python tests: `run.sh test_curl.Limits`.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
root=$(cd ../.. && pwd)

target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$root/$target ;; esac
if [ -z "${TIDEGATE:-}" ]; then
  (cd "$root" && cargo build --locked)
  TIDEGATE=$target/debug/tidegate
fi
clients=$target/clients
export TIDEGATE
export CLIENT_MODULES=$clients/node
mkdir -p "$CLIENT_MODULES"

# Each stamp is a copy of what was asked for, written last: half an installation is made again.
if ! cmp -s requirements.txt "$clients/venv/stamp"; then
  echo "installing the Python clients under $clients/venv" >&2
  rm -rf "$clients/venv"
  python3 -m venv "$clients/venv"
  timeout 300 "$clients/venv/bin/pip" --disable-pip-version-check install --quiet --no-deps \
    -r requirements.txt
  cp requirements.txt "$clients/venv/stamp"
fi
if ! cmp -s package-lock.json "$CLIENT_MODULES/stamp"; then
  echo "installing the Node.js clients under $CLIENT_MODULES" >&2
  rm -f "$CLIENT_MODULES/stamp"
  cp package.json package-lock.json .npmrc "$CLIENT_MODULES/"
  (cd "$CLIENT_MODULES" && timeout 300 npm ci --loglevel=error)
  cp package-lock.json "$CLIENT_MODULES/stamp"
fi

# Loopback only: a proxy of the machine must not stand between a client and tidegate.
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
export PYTHONDONTWRITEBYTECODE=1

# Both halves mostly wait, so they run together. timeout ends the whole process group, the proxies
# and upstreams of a test that hangs included.
python=(timeout -k 5 120 "$clients/venv/bin/python" "$here/python/run.py")
node=(timeout -k 5 100 node "$here/node/run.mjs")
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
