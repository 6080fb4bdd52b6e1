#!/usr/bin/env bash
# Licences, bans and sources of what is built in, and known vulnerabilities where the advisory
# database can be fetched.
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/tool.sh

find_cargo_deny
"$tool" --log-level error --locked check licenses bans sources
if timeout 60 "$tool" --log-level off --locked fetch db >/dev/null 2>&1; then
  "$tool" --log-level error --locked check advisories
else
  echo "the advisory database cannot be reached: known vulnerabilities were not checked" >&2
fi
