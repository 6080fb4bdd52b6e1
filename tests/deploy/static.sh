#!/usr/bin/env bash
# The static binary on a root with nothing but itself and a proxy.toml: it forwards, it denies, and
# it says what a bare machine lacks. As root, for chroot. TIDEGATE is the binary to try.
set -euo pipefail
cd "$(dirname "$0")/../.."
tidegate=${TIDEGATE:-${CARGO_TARGET_DIR:-target}/$(uname -m)-unknown-linux-musl/static/tidegate}
fail() { echo "static: $*" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || fail "has to be run by root"
[ -x "$tidegate" ] || fail "there is no $tidegate: \`make static\` builds it"
! ldd "$tidegate" 2>/dev/null | grep -q '=>' || fail "it needs libraries"

bare=$(mktemp -d)
trap 'kill "${upstream:-}" "${proxy:-}" 2>/dev/null || true; rm -rf "$bare"' EXIT
cp "$tidegate" "$bare/tidegate"
free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
behind=$(free)
listen=$(free)
admin=$(free)
python3 -m http.server --bind 127.0.0.1 --directory "$bare" "$behind" >/dev/null 2>&1 &
upstream=$!
for _ in $(seq 100); do
  curl -s -o /dev/null --noproxy '*' "http://127.0.0.1:$behind/" && break
  sleep 0.1
done

cat >"$bare/proxy.toml" <<EOF
listen = "127.0.0.1:$listen"
admin  = "127.0.0.1:$admin"

[upstream.near]
servers = "http://127.0.0.1:$behind"

[upstream.named]
servers = "http://api.example:$behind"

[upstream.secure]
servers = "https://127.0.0.1:$behind"

[limit.two]
rate = "2/h"
key  = "ip"

[[route]]
path     = "/proxy.toml"
upstream = "near"
limits   = ["two"]

[[route]]
path     = "/named"
upstream = "named"
limits   = []

[[route]]
path     = "/secure"
upstream = "secure"
limits   = []
EOF
inside=(env -i "$(command -v chroot)" "$bare" /tidegate)
bare() { "${inside[@]}" "$@"; }
bare check || fail "check"
"${inside[@]}" run >"$bare/out" 2>"$bare/said" &
proxy=$!
for _ in $(seq 200); do
  bare health --ready 2>/dev/null && break
  kill -0 "$proxy" 2>/dev/null || break
  sleep 0.1
done
said() { cat "$bare/said" >&2; fail "$@"; }
bare health --ready || said "it is not ready"
ask() { curl -s -o /dev/null -w '%{http_code}' --noproxy '*' "http://127.0.0.1:$listen$1"; }
statuses=$(ask /proxy.toml)$(ask /proxy.toml)$(ask /proxy.toml)
[ "$statuses" = 200200429 ] || said "three requests of two an hour: $statuses"
# Neither resolv.conf nor certificates: those requests fail, and nothing else does.
named=$(ask /named)
[[ $named =~ 50[24] ]] || said "a name that cannot be resolved: $named"
[ "$(ask /secure)" = 502 ] || said "TLS without roots"
grep -q '"time":"[0-9-]*T[0-9:.]*Z"' "$bare/out" || said "the access log: $(cat "$bare/out")"
grep -q 'upstream   named: .*down (' "$bare/said" || said "the start report names the host"
[ "${SHOW:-}" != 1 ] || cat "$bare/said" "$bare/out"
kill "$proxy"
wait "$proxy" || said "it did not end in order"
echo "static: forwards and denies on a bare root; $(wc -c <"$tidegate") bytes"
