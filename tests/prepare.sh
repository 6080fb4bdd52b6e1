#!/usr/bin/env bash
# Installs and builds what later checks need, while the first checks run: packages, cargo-deny, mdBook.
# A check that comes before this has ended waits for it.
set -euo pipefail
cd "$(dirname "$0")/.."
./tests/install.sh
source tests/tool.sh
find_cargo_deny
find_mdbook
