#!/usr/bin/env bash
# The admin of a running tidegate, read by other people's programs: its metrics by Prometheus's own
# parsers, and its API by schemathesis, which makes requests of its description and holds every answer
# against it. Under a minute.
#
# TIDEGATE is the binary to try; without it the debug build is made. Needs python3 with venv
# (tests/install.sh).
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
venv=$target/clients/admin

# The stamp is a copy of what was asked for, written last: half an installation is made again.
if ! cmp -s requirements.txt "$venv/stamp"; then
  echo "installing the readers under $venv" >&2
  rm -rf "$venv"
  mkdir -p "$target/clients"
  python3 -m venv "$venv"
  timeout 300 "$venv/bin/pip" --disable-pip-version-check install --quiet --no-deps \
    -r requirements.txt
  cp requirements.txt "$venv/stamp"
fi

# Loopback only: a proxy of the machine must not stand between.
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
export PYTHONDONTWRITEBYTECODE=1
exec timeout -k 5 180 "$venv/bin/python" "$here/readers.py" "$venv/bin/schemathesis"
