#!/usr/bin/env bash
# testssl.sh, sslyze, tlsfuzzer, httplint and openssl against a running tidegate with TLS. Writes
# docs/conformance.md. Fails if a finding has no row in reasons.toml. Some minutes.
#
# TIDEGATE is the binary to try; without it the debug build is made. TLSFUZZER is a checkout of
# tlsfuzzer, which no registry has; without it the commit below is cloned. Needs python3 with venv,
# openssl and git.
set -euo pipefail
cd "$(dirname "$0")"
source ../outside.sh

commit=14555fe211456c46deccc4b2d94751dbd894aece
command -v testssl >/dev/null ||
  again testssl.sh apt-get install -y --no-install-recommends testssl.sh
venv=$target/clients/conformance
# sniffpy and sslyze have no wheel, so their build is allowed.
python_modules "$venv"
if [ -z "${TLSFUZZER:-}" ]; then
  TLSFUZZER=$target/clients/tlsfuzzer-$commit
  if [ ! -d "$TLSFUZZER" ]; then
    again tlsfuzzer git clone --quiet https://github.com/tlsfuzzer/tlsfuzzer "$TLSFUZZER.new"
    git -C "$TLSFUZZER.new" checkout --quiet "$commit"
    mv "$TLSFUZZER.new" "$TLSFUZZER"
  fi
fi
export TLSFUZZER TLSFUZZER_COMMIT=$commit
exec timeout -k 5 3000 "$venv/bin/python" conformance.py "$root/docs/conformance.md"
