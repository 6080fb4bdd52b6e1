#!/bin/sh
# Builds a tidegate that needs no library of the machine: static/tidegate in the folder of its target.
# Prints its path and its size. PROFILE=dev builds without optimization.
#
# The C code in it (jemalloc, aws-lc) needs musl-gcc. As root with apt, this installs it.
set -eu
cd "$(dirname "$0")/.."
triple=$(uname -m)-unknown-linux-musl
profile=${PROFILE:-static}
built=${CARGO_TARGET_DIR:-target}/$triple/$profile
[ "$profile" != dev ] || built=${CARGO_TARGET_DIR:-target}/$triple/debug

if ! command -v musl-gcc >/dev/null; then
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "install musl-gcc first: \`apt-get install musl-tools\`, or musl of your system" >&2
    exit 1
  fi
  echo "installing: musl-tools" >&2
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends musl-tools >/dev/null
fi
if command -v rustup >/dev/null; then
  rustup target add "$triple" 2>/dev/null || {
    echo "cannot add the target $triple: \`rustup target add $triple\` says why" >&2
    exit 1
  }
fi
cargo build --locked --profile "$profile" --bin tidegate --target "$triple"
echo "$built/tidegate: $(wc -c <"$built/tidegate") bytes"
