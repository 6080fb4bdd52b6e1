#!/usr/bin/env bash
# What deploy/ ships, checked as far as a machine without containers and clusters can: the units by
# systemd, manifests and the compose file by their schemas, every configuration in them by the proxy
# itself, and the image's configuration by a proxy that may write nowhere. Some seconds.
#
# TIDEGATE is the binary to try; without it the debug build is made. Needs python3 with venv and
# systemd-analyze (tests/install.sh). `make deb-check` and `make image` do the long parts.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
source ../outside.sh

venv=$target/clients/deploy
python_modules "$venv"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Units: what systemd says of them, and how much of the machine they leave open. The binary need not be
# where they say.
sed "s|/usr/local/bin/tidegate|$TIDEGATE|" "$root/deploy/systemd/tidegate.service" \
  >"$work/tidegate.service"
cp "$root/deploy/systemd/tidegate.socket" "$work"
said=$(systemd-analyze verify "$work/tidegate.service" "$work/tidegate.socket" 2>&1) || true
if [ -n "$said" ]; then
  echo "systemd-analyze verify: $said" >&2
  exit 1
fi
# Tenths: 10 is 1.0, "OK"; a unit without any of it is at 9.6.
systemd-analyze security --offline=true --threshold=17 --no-pager "$work/tidegate.service" \
  >"$work/security" || { grep -v '✓' "$work/security" >&2; exit 1; }
# Units have to leave the proxy more time than it takes to drain.
grep -q '^TimeoutStopSec=40s$' "$root/deploy/systemd/tidegate.service"

# What the image is built from is enough to build it: the context that .dockerignore leaves.
context=$work/context
mkdir "$context"
sed -n 's/^!//p' "$root/.dockerignore" | while read -r kept; do
  (cd "$root" && cp -r --parents $kept "$context")
done
(cd "$context" && cargo metadata --quiet --locked --no-deps --format-version 1 >/dev/null)
# Cargo lists the files that a build has read beside the binary. A binary of elsewhere has no list.
if [ -f "$TIDEGATE.d" ]; then
  sed -e 's/^[^:]*: //' -e 's/\([^\]\) /\1\n/g' "$TIDEGATE.d" | sed 's/\\ / /g' |
    while read -r file; do
      [ -e "$context/${file#"$root"/}" ] ||
        { echo "the image is built without $file: add it to .dockerignore" >&2; exit 1; }
    done
fi

# `make install` makes a whole installation below DESTDIR and PREFIX, and `make uninstall` leaves none.
export DESTDIR=$work/place PREFIX=/usr BINARY=$TIDEGATE
make -s -C "$root" install >/dev/null
[ -x "$DESTDIR/usr/bin/tidegate" ]
[ -z "$(find "$DESTDIR" -type f -not -path "$DESTDIR/usr/*")" ]
for kept in share/man/man1/tidegate-explain.1 share/bash-completion/completions/tidegate \
  share/doc/tidegate/examples/proxy.toml; do
  [ -s "$DESTDIR/usr/$kept" ] || { echo "make install: no $kept" >&2; exit 1; }
done
"$DESTDIR/usr/bin/tidegate" check -c "$DESTDIR/usr/share/doc/tidegate/examples/proxy.toml" >/dev/null
make -s -C "$root" uninstall >/dev/null
left=$(find "$DESTDIR" -type f)
[ -z "$left" ] || { echo "make uninstall leaves $left" >&2; exit 1; }
unset DESTDIR PREFIX BINARY

"$venv/bin/kubernetes-validate" --strict --quiet "$root"/deploy/kubernetes/*.yaml
if command -v docker >/dev/null 2>&1 && docker compose version >/dev/null 2>&1; then
  docker compose -f "$root/deploy/compose.yaml" config --quiet
fi
export PYTHONDONTWRITEBYTECODE=1
exec timeout -k 5 600 "$venv/bin/python" "$here/shipped.py" "$root"
