#!/usr/bin/env bash
# The dashboard in a real Chromium, on a running tidegate with a real redis-server.
#
# TIDEGATE is the binary to try; without it the debug build is made. Playwright and axe are installed
# once, pinned, under target/browser; the browser is the system's (tests/install.sh), and CHROMIUM
# names another. Arguments go to node's test runner: `run.sh --test-name-pattern reset`.
# DASHBOARD_SHOTS=FOLDER keeps pictures of the page there.
set -euo pipefail
cd "$(dirname "$0")"
source ../outside.sh

export BROWSER_MODULES=$target/browser
node_modules "$BROWSER_MODULES"
if [ -z "${CHROMIUM:-}" ]; then
  CHROMIUM=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
fi
export CHROMIUM

# Two files at a time: tests mostly wait for the browser. timeout ends the whole process group,
# browser and servers of a test that hangs included.
exec timeout -k 5 600 node --test --test-concurrency=2 --test-reporter=spec "$@" ./*.test.mjs
