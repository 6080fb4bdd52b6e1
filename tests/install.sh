#!/usr/bin/env bash
# Installs, through apt, what the tests talk to and is not there yet: a real redis-server, curl, and
# Python and Node.js for the third-party clients. Does nothing on a machine that has them all.
set -euo pipefail

need=()
want() { # PROGRAM PACKAGE...
  command -v "$1" >/dev/null 2>&1 || need+=("${@:2}")
}
want redis-server redis-server
want curl curl
want python3 python3 python3-venv
want node nodejs npm
want npm npm
want cc gcc libc6-dev
if command -v python3 >/dev/null 2>&1 && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  need+=(python3-venv)
fi
[ ${#need[@]} -eq 0 ] && exit 0

echo "installing: ${need[*]}" >&2
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null 2>&1 || { echo "the tests need, as root: apt-get install ${need[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
