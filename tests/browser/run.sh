#!/usr/bin/env bash
# The dashboard in a real Chromium, on a running tidegate with a real redis-server.
#
# TIDEGATE is the binary to try; without it the debug build is made. Playwright and axe are installed
# once, pinned, under target/browser; the browser is the system's (tests/install.sh), and CHROMIUM
# names another. Arguments go to node's test runner: `run.sh --test-name-pattern reset`.
# DASHBOARD_SHOTS=FOLDER keeps pictures of the page there.
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
export TIDEGATE
export BROWSER_MODULES=$target/browser
mkdir -p "$BROWSER_MODULES"

# The stamp is a copy of what was asked for, written last: half an installation is made again.
if ! cmp -s package-lock.json "$BROWSER_MODULES/stamp"; then
  echo "installing Playwright and axe under $BROWSER_MODULES" >&2
  rm -f "$BROWSER_MODULES/stamp"
  cp package.json package-lock.json .npmrc "$BROWSER_MODULES/"
  (cd "$BROWSER_MODULES" && timeout 300 npm ci --loglevel=error)
  cp package-lock.json "$BROWSER_MODULES/stamp"
fi

if [ -z "${CHROMIUM:-}" ]; then
  CHROMIUM=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
fi
export CHROMIUM

# Loopback only: a proxy of the machine must not stand between the browser and tidegate.
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
# timeout ends the whole process group, browser and servers of a test that hangs included.
exec timeout -k 5 240 node --test --test-reporter=spec "$@" "$here"/*.test.mjs
