#!/usr/bin/env bash
# The schema of proxy.toml in an editor: the language server of the VS Code extension "Even Better
# TOML" reports mistakes, completes and explains, and Taplo checks the files of the documentation. Under
# a minute.
#
# TIDEGATE is the binary to try; without it the debug build is made. Needs node with npm
# (tests/install.sh). Arguments go to node's test runner: `run.sh --test-name-pattern names`.
set -euo pipefail
cd "$(dirname "$0")"
source ../outside.sh

export EDITOR_MODULES=$target/editor
node_modules "$EDITOR_MODULES"

# timeout ends the whole process group.
exec timeout -k 5 300 node --test --test-reporter=spec "$@" ./*.test.mjs
