#!/usr/bin/env bash
# Licences, bans and sources of what is built in, and known vulnerabilities where the advisory
# database can be fetched. cargo-deny is built once when it is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/again.sh
target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$PWD/$target ;; esac

deny=$(command -v cargo-deny || true)
if [ -z "$deny" ]; then
  tools=$target/tools
  [ -x "$tools/bin/cargo-deny" ] ||
    again cargo-deny cargo install cargo-deny --version 0.20.2 --locked --quiet --debug \
      --root "$tools" --target-dir "$target/tools-build"
  deny=$tools/bin/cargo-deny
fi
"$deny" --log-level error --locked check licenses bans sources
if timeout 60 "$deny" --log-level off --locked fetch db >/dev/null 2>&1; then
  "$deny" --log-level error --locked check advisories
else
  echo "the advisory database cannot be reached: known vulnerabilities were not checked" >&2
fi
