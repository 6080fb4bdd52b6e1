#!/bin/sh
# Installs the release build below PREFIX (/usr/local): the binary, man pages, completions, and
# examples of configurations and units. `install.sh uninstall` removes the same files. DESTDIR is put
# before all of them. The binary loses its debug lines, and keeps the names of its functions.
#
# BINARY is another build to install. Nothing is built here, so that root needs no compiler.
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
binary=${BINARY:-$target/release/tidegate}
prefix=${DESTDIR:-}${PREFIX:-/usr/local}
bin=$prefix/bin
share=$prefix/share
examples=$share/doc/tidegate/examples

uninstall() {
  rm -f "$bin/tidegate" "$share/man/man1/tidegate.1" "$share"/man/man1/tidegate-*.1 \
    "$share/bash-completion/completions/tidegate" "$share/zsh/site-functions/_tidegate" \
    "$share/fish/vendor_completions.d/tidegate.fish"
  rm -rf "$share/doc/tidegate"
}

case ${1:-install} in
uninstall)
  uninstall
  echo "removed tidegate from $prefix"
  exit
  ;;
install) ;;
*)
  echo "install.sh: write install or uninstall" >&2
  exit 2
  ;;
esac

if [ ! -x "$binary" ]; then
  echo "there is no $binary: run \`make release\` first, without root" >&2
  exit 1
fi
# Pages of commands that an older version had go.
uninstall
install -d "$bin" "$share/man/man1" "$share/bash-completion/completions" \
  "$share/zsh/site-functions" "$share/fish/vendor_completions.d" "$examples"
install -m 755 "$binary" "$bin/tidegate"
if command -v strip >/dev/null; then
  strip --strip-debug "$bin/tidegate"
fi
"$binary" man "$share/man/man1" 2>/dev/null
chmod 644 "$share"/man/man1/tidegate*.1
made() { # COMPLETIONS FILE
  "$binary" completions "$1" >"$2"
  chmod 644 "$2"
}
made bash "$share/bash-completion/completions/tidegate"
made zsh "$share/zsh/site-functions/_tidegate"
made fish "$share/fish/vendor_completions.d/tidegate.fish"
install -m 644 proxy.toml proxy.reference.toml deploy/systemd/tidegate.socket "$examples"
sed "s|/usr/local/bin/|${PREFIX:-/usr/local}/bin/|" deploy/systemd/tidegate.service \
  >"$examples/tidegate.service"
chmod 644 "$examples/tidegate.service"
echo "installed $bin/tidegate; examples are in $examples"
