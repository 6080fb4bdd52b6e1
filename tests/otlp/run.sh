#!/usr/bin/env bash
# Spans of a running tidegate, taken by a real collector of OpenTelemetry (rotel) over HTTP and gRPC,
# which hands them on to a reader that decodes them with the protocol's own messages. Some seconds.
#
# TIDEGATE is the binary to try; without it the debug build is made. Needs python3 with venv, and its
# shared library, which the collector is linked to (tests/install.sh).
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
venv=$target/clients/otlp

# The stamp is a copy of what was asked for, written last: half an installation is made again. The
# collector comes for one version of Python, and needs only that version's library: it is a program.
if ! cmp -s requirements.txt "$venv/stamp"; then
  echo "installing the collector under $venv" >&2
  rm -rf "$venv"
  mkdir -p "$target/clients"
  python3 -m venv "$venv"
  timeout 300 "$venv/bin/pip" --disable-pip-version-check install --quiet --no-deps \
    --only-binary=:all: --implementation cp --python-version 3.11 --target "$venv/packages" \
    -r requirements.txt
  chmod +x "$venv/packages/rotel/rotel-agent"
  cp requirements.txt "$venv/stamp"
fi

# Loopback only: a proxy of the machine must not stand between.
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$venv/packages
exec timeout -k 5 150 "$venv/bin/python" "$here/spans.py" "$venv/packages/rotel/rotel-agent"
